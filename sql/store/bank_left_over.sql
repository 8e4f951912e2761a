-- Prompts of a bank ($1 to $3) without a cluster, or of one whose representative is none any more; their features.
SELECT p.id, p.features
FROM prompts p
WHERE p.llm = $1 AND p.revision = $2 AND p.tokenizer = $3
  AND (p.medoid IS NULL OR p.medoid NOT IN (SELECT m.id FROM prompts m WHERE m.medoid = m.id))
ORDER BY p.id
