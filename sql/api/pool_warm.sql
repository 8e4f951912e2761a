-- What people keep warm in a pool, and what became of it on each runner. $1: pool.
SELECT p.backbone, g.node_id AS node, coalesce(s.state, 'not loaded') AS state, s.recipe, s.memory, s.note, p.set_by, p.ts
FROM pool_backbones p
LEFT JOIN (SELECT DISTINCT g.pool, g.node_id FROM gpus g JOIN nodes n ON n.id = g.node_id WHERE n.state NOT IN ('stopped', 'gone')) g
       ON g.pool = p.pool
LEFT JOIN fork_servers s ON s.node_id = g.node_id AND s.backbone = p.backbone
WHERE p.pool = $1
ORDER BY p.backbone, g.node_id
