-- The prompt of the cluster of $1 that is nearest to its representative, which itself stays: what a new one replaces (4.4.3.3).
SELECT p.id
FROM prompts p JOIN prompts m ON m.id = $1
WHERE p.medoid = $1 AND p.id <> $1
ORDER BY list_cosine_distance(p.features, m.features), p.id
LIMIT 1
