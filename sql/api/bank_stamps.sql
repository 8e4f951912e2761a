-- Banks whose prompts all have a cluster, and what changes with their content.
SELECT llm, revision, tokenizer, concat_ws('-', count(*), max(id), bit_xor(hash(id, medoid))) AS stamp
FROM prompts
GROUP BY ALL
HAVING count(medoid) = count(*)
ORDER BY ALL
