-- GPUs of each pool that was ever offered, by their bytes (0: not known), counting those of runners that are there; 0: none is there now.
-- A pool that has a policy of its own is one, too, before any runner has joined it.
SELECT g.pool, g.memory, count(*) FILTER (n.state NOT IN ('gone', 'stopped') AND g.health <> 'missing')
FROM gpus g JOIN nodes n ON n.id = g.node_id
GROUP BY g.pool, g.memory
UNION ALL
SELECT DISTINCT pool, 0, 0 FROM policy_settings WHERE pool NOT IN (SELECT pool FROM gpus)
