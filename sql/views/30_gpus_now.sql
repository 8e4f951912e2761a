-- Every GPU and CPU slot as it is now: its health, who holds it, and what it last measured.
CREATE OR REPLACE VIEW gpus_now AS
WITH clock AS (SELECT make_timestamp(epoch_us(now())) AS moment),
sampled AS (
    SELECT t.gpu_id, max(t.ts) AS ts, arg_max(t.utilisation, t.ts) AS utilisation, arg_max(t.memory_used, t.ts) AS memory_used,
           arg_max(t.power, t.ts) AS power, arg_max(t.temperature, t.ts) AS temperature
    FROM telemetry t
    WHERE t.ts > make_timestamp(epoch_us(now())) - INTERVAL 10 MINUTE
    GROUP BY t.gpu_id
),
held AS (
    SELECT g.gpu_id, l.id AS lease_id, l.job_id, l.state, l.granted_at, j.name, j.owner
    FROM leases l JOIN lease_gpus g ON g.lease_id = l.id JOIN jobs j ON j.id = l.job_id
    WHERE l.state <> 'ended'
)
SELECT g.id, g.idx, g.node_id AS node, g.pool, g.kind, g.name, g.health, g.note, n.state AS node_state,
       CASE WHEN h.lease_id IS NOT NULL THEN 'busy'
            WHEN n.state IN ('stopped', 'gone') OR g.health = 'missing' THEN 'offline'
            WHEN g.health <> 'ok' THEN g.health
            WHEN n.state <> 'up' THEN n.state
            ELSE 'free' END AS state,
       h.lease_id, h.state AS lease_state, h.job_id, h.name AS job, h.owner, h.granted_at AS held_since,
       epoch(c.moment - h.granted_at) AS held,
       CASE WHEN g.kind = 'cuda' OR s.ts > h.granted_at THEN s.utilisation END AS utilisation,  -- nobody measures a slot that is free
       CASE WHEN g.kind = 'cuda' OR s.ts > h.granted_at THEN s.memory_used END AS memory_used, g.memory, s.power, s.temperature, s.ts AS sampled_at
FROM gpus g
CROSS JOIN clock c
JOIN nodes n ON n.id = g.node_id
LEFT JOIN held h ON h.gpu_id = g.id
LEFT JOIN sampled s ON s.gpu_id = g.id
ORDER BY g.node_id, g.idx;
COMMENT ON VIEW gpus_now IS 'Every GPU and CPU slot as it is now: its health, who holds it, and what it last measured';
COMMENT ON COLUMN gpus_now.id IS 'UUID of the GPU, or node/cpuN of a slot';
COMMENT ON COLUMN gpus_now.idx IS 'Position on its node';
COMMENT ON COLUMN gpus_now.node IS 'Runner';
COMMENT ON COLUMN gpus_now.pool IS 'Pool';
COMMENT ON COLUMN gpus_now.kind IS 'cuda, or cpu for a slot';
COMMENT ON COLUMN gpus_now.name IS 'Product name';
COMMENT ON COLUMN gpus_now.health IS 'ok, dirty, quarantined or missing';
COMMENT ON COLUMN gpus_now.note IS 'Why it is not ok';
COMMENT ON COLUMN gpus_now.node_state IS 'State of the runner';
COMMENT ON COLUMN gpus_now.state IS 'busy, free, offline, or why nothing starts on it: dirty, quarantined, suspect, draining, drained';
COMMENT ON COLUMN gpus_now.lease_id IS 'Lease that holds it';
COMMENT ON COLUMN gpus_now.lease_state IS 'State of that lease';
COMMENT ON COLUMN gpus_now.job_id IS 'Job that holds it';
COMMENT ON COLUMN gpus_now.job IS 'Name of that job';
COMMENT ON COLUMN gpus_now.owner IS 'User of that job';
COMMENT ON COLUMN gpus_now.held_since IS 'Since when it is held (UTC)';
COMMENT ON COLUMN gpus_now.held IS 'Seconds since then';
COMMENT ON COLUMN gpus_now.utilisation IS 'Busy share, 0 to 1, at the last sample; NULL: none in the last 10 minutes';
COMMENT ON COLUMN gpus_now.memory_used IS 'Memory in use (bytes) at the last sample';
COMMENT ON COLUMN gpus_now.memory IS 'Total memory (bytes), 0 for a slot';
COMMENT ON COLUMN gpus_now.power IS 'Power (W) at the last sample';
COMMENT ON COLUMN gpus_now.temperature IS 'Temperature (°C) at the last sample';
COMMENT ON COLUMN gpus_now.sampled_at IS 'Time of the last sample (UTC)';
