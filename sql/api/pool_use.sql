-- GPUs of each pool and how many of them are held.
SELECT g.pool, count(*) AS gpus, count(h.gpu_id) AS busy
FROM gpus g JOIN nodes n ON n.id = g.node_id AND n.state NOT IN ('gone', 'stopped')
LEFT JOIN (SELECT DISTINCT gpu_id FROM live_shares) h ON h.gpu_id = g.id
WHERE g.health <> 'missing'
GROUP BY g.pool
ORDER BY g.pool
