-- The representative of a bank ($1 to $3) that is nearest to the features $4: the cluster C_sim of 4.4.3.3.
SELECT id
FROM prompts
WHERE llm = $1 AND revision = $2 AND tokenizer = $3 AND medoid = id
ORDER BY list_cosine_distance(features, $4::FLOAT[]), id
LIMIT 1
