-- GPUs of each pool that was ever offered, counting those of runners that are there; 0: none is there now.
SELECT g.pool, count(*) FILTER (n.state NOT IN ('gone', 'stopped') AND g.health <> 'missing')
FROM gpus g JOIN nodes n ON n.id = g.node_id
GROUP BY g.pool
