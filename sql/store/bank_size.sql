-- Of a bank ($1 to $3): prompts, length of their features (NULL: there are none), clusters.
SELECT count(*), max(len(features)), count(*) FILTER (medoid = id)
FROM prompts
WHERE llm = $1 AND revision = $2 AND tokenizer = $3
