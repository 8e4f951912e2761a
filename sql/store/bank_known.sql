-- Which of the texts $4 a bank ($1 to $3) has.
SELECT text
FROM prompts
WHERE llm = $1 AND revision = $2 AND tokenizer = $3 AND text IN (SELECT unnest($4::VARCHAR[]))
