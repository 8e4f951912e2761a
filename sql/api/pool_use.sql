-- GPUs of each pool and how many of them are held.
SELECT g.pool, count(*) AS gpus, count(h.gpu_id) AS busy
FROM gpus g JOIN nodes n ON n.id = g.node_id AND n.state NOT IN ('gone', 'stopped')
LEFT JOIN (SELECT DISTINCT lg.gpu_id FROM lease_gpus lg JOIN leases l ON l.id = lg.lease_id WHERE l.state <> 'ended') h ON h.gpu_id = g.id
WHERE g.health <> 'missing'
GROUP BY g.pool
ORDER BY g.pool
