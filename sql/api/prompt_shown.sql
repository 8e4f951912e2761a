-- A prompt, its cluster, and how far it is from its representative.
SELECT p.id, p.llm, p.revision, p.tokenizer, p.text, p.source, p.task, p.ts, p.added_by, len(p.features) AS features, p.medoid,
       len(p.vectors) // len(p.features) AS tokens,
       m.text AS representative, list_cosine_distance(p.features, m.features) AS distance,
       CASE WHEN p.medoid IS NOT NULL THEN (SELECT count(*) FROM prompts c WHERE c.medoid = p.medoid) END AS cluster_size
FROM prompts p LEFT JOIN prompts m ON m.id = p.medoid
WHERE p.id = $1
