-- GPUs of a pool, with whether something new may start there. Put in order by the reader: here it costs 1 ms of a tick. $1: pool.
SELECT g.id, g.node_id, g.idx, g.health = 'ok' AND n.state = 'up' AS usable, g.memory::DOUBLE AS memory
FROM gpus g JOIN nodes n ON n.id = g.node_id
WHERE g.pool = $1 AND n.state NOT IN ('gone', 'stopped') AND g.health <> 'missing'
