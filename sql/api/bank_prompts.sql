-- All of a bank ($1 to $3), in the order of its numbers.
SELECT id, text, task, features, medoid, vectors
FROM prompts
WHERE llm = $1 AND revision = $2 AND tokenizer = $3
ORDER BY id
