-- GPUs of each pool that was ever offered, by their bytes (0: not known), counting those of runners that are there; 0: none is there now.
SELECT g.pool, g.memory, count(*) FILTER (n.state NOT IN ('gone', 'stopped') AND g.health <> 'missing')
FROM gpus g JOIN nodes n ON n.id = g.node_id
GROUP BY g.pool, g.memory
