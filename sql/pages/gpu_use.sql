-- Each GPU within a time: its share under lease, and its measured use. $start, $end: s since the epoch.
WITH held AS (
    SELECT gpu_id, sum(least(epoch(until), $end) - greatest(epoch(since), $start)) / ($end - $start) AS leased
    FROM gpu_leased
    WHERE epoch(since) < $end AND epoch(until) > $start
    GROUP BY gpu_id
),
measured AS (
    SELECT gpu_id, avg(utilisation) AS used, max(memory_used) AS memory_used, avg(power) AS power
    FROM telemetry
    WHERE epoch(ts) >= $start AND epoch(ts) < $end
    GROUP BY gpu_id
)
SELECT g.id, g.node_id AS node, g.pool, g.kind, g.name, g.health, n.state, g.memory, coalesce(h.leased, 0) AS leased, m.used, m.memory_used, m.power
FROM gpus g JOIN nodes n ON n.id = g.node_id LEFT JOIN held h ON h.gpu_id = g.id LEFT JOIN measured m ON m.gpu_id = g.id
WHERE (n.state NOT IN ('stopped', 'gone') AND g.health <> 'missing') OR h.leased > 0
ORDER BY g.node_id, g.idx
