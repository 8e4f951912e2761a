-- Prompts of the LLM $1 (NULL: any) that hold all words $2 (lower case) in their text or task, the newest first; with $3 (NULL: none) those of the bank of that
-- prompt, the nearest to it first. $4: how many at most.
SELECT p.id, p.llm, p.revision, p.tokenizer, p.text, p.source, p.task, p.medoid, p.ts, p.added_by,
       list_cosine_distance(p.features, n.features) AS distance
FROM prompts p LEFT JOIN prompts n ON n.id = $3 AND (n.llm, n.revision, n.tokenizer) = (p.llm, p.revision, p.tokenizer)
WHERE ($1::VARCHAR IS NULL OR p.llm = $1) AND ($3::BIGINT IS NULL OR n.id IS NOT NULL)
  AND list_bool_and(list_transform($2::VARCHAR[], lambda word: contains(lower(concat_ws(' ', p.text, p.task)), word))) IS NOT FALSE
ORDER BY distance, p.id DESC
LIMIT $4
