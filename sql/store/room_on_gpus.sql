-- Those of the given GPUs on which something may start: their memory, and who holds them now. $1: GPUs.
SELECT g.id, g.memory, count(s.lease_id), count(s.lease_id) FILTER (s.share = 'exclusive'), CAST(coalesce(sum(s.memory), 0) AS BIGINT)
FROM gpus g JOIN nodes n ON n.id = g.node_id LEFT JOIN live_shares s ON s.gpu_id = g.id
WHERE g.id IN (SELECT unnest($1::VARCHAR[])) AND g.health = 'ok' AND n.state = 'up'
GROUP BY g.id, g.memory
