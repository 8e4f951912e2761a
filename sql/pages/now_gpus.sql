-- Every GPU whose runner has not left, and what was last measured on it.
WITH newest AS (
    SELECT gpu_id, arg_max(utilisation, ts) AS utilisation, arg_max(memory_used, ts) AS memory_used, max(ts) AS ts
    FROM telemetry
    WHERE ts > make_timestamp(epoch_us(now())) - INTERVAL 1 MINUTE
    GROUP BY gpu_id
)
SELECT g.id, g.idx, g.node_id AS node, g.pool, g.kind, g.name, g.health, g.note, n.state AS node_state, g.memory, g.warm,
       s.utilisation, s.memory_used
FROM gpus g JOIN nodes n ON n.id = g.node_id LEFT JOIN newest s ON s.gpu_id = g.id
WHERE n.state NOT IN ('stopped', 'gone') AND g.health <> 'missing'
ORDER BY g.node_id, g.idx
