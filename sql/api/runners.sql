-- Runners with their GPUs and how many of them are held.
SELECT n.id, n.host, n.state, n.version, n.last_seen, n.pid, n.session, n.leaves_at, count(g.id) AS gpus, count(h.gpu_id) AS busy
FROM nodes n
LEFT JOIN gpus g ON g.node_id = n.id AND g.health <> 'missing'
LEFT JOIN (SELECT DISTINCT gpu_id FROM live_shares) h ON h.gpu_id = g.id
GROUP BY ALL
ORDER BY n.id
