-- Banks of the LLM $1 (NULL: all): their sizes, their clusters, and the mean number of scores in a lookup.
WITH clusters AS (
    SELECT llm, revision, tokenizer, medoid, count(*) AS size FROM prompts GROUP BY ALL
), shaped AS (
    SELECT llm, revision, tokenizer, count(medoid) AS clusters, max(size) FILTER (medoid IS NOT NULL) AS largest,
           count(medoid) + sum(size * size) FILTER (medoid IS NOT NULL) / sum(size) AS scores
    FROM clusters GROUP BY ALL
), distances AS (
    SELECT p.llm, p.revision, p.tokenizer, avg(list_cosine_distance(p.features, m.features)) AS distance
    FROM prompts p JOIN prompts m ON m.id = p.medoid GROUP BY ALL
)
SELECT p.llm, p.revision, p.tokenizer, count(*) AS prompts, max(len(p.features)) AS features, s.clusters, s.largest,
       CASE WHEN s.clusters > 0 THEN s.scores END AS scores, d.distance, count(DISTINCT p.task) AS tasks, count(DISTINCT p.source) AS sources,
       max(p.ts) AS changed_at
FROM prompts p JOIN shaped s USING (llm, revision, tokenizer) LEFT JOIN distances d USING (llm, revision, tokenizer)
WHERE $1::VARCHAR IS NULL OR p.llm = $1
GROUP BY ALL
ORDER BY p.llm, changed_at DESC
