-- Numbers of the prompts of a bank ($1 to $3).
SELECT id FROM prompts WHERE llm = $1 AND revision = $2 AND tokenizer = $3
