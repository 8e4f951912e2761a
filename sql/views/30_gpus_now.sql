-- Every GPU and CPU slot as it is now: its health, who holds it, and what it last measured.
-- Where several jobs share it, the first is the one that came first. NVML measures a GPU, whoever is on it; of a slot each lease is measured.
CREATE OR REPLACE VIEW gpus_now AS
WITH clock AS (SELECT make_timestamp(epoch_us(now())) AS moment),
sampled AS (
    SELECT t.gpu_id, t.lease_id, max(t.ts) AS ts, arg_max(t.utilisation, t.ts) AS utilisation, arg_max(t.memory_used, t.ts) AS memory_used,
           arg_max(t.power, t.ts) AS power, arg_max(t.temperature, t.ts) AS temperature
    FROM telemetry t
    WHERE t.ts > make_timestamp(epoch_us(now())) - INTERVAL 10 MINUTE
    GROUP BY t.gpu_id, t.lease_id
),
measured AS (
    SELECT g.id AS gpu_id, max(s.ts) AS ts, arg_max(s.power, s.ts) AS power, arg_max(s.temperature, s.ts) AS temperature,
           -- The last sample of an ended job says nothing about the present ones.
           CASE WHEN g.kind = 'cuda' THEN arg_max_null(CASE WHEN s.lease_id IS NULL OR h.lease_id IS NOT NULL THEN s.utilisation END, s.ts)
                ELSE least(sum(s.utilisation) FILTER (h.lease_id IS NOT NULL), 1) END AS utilisation,
           CASE WHEN g.kind = 'cuda' THEN arg_max(s.memory_used, s.ts)
                ELSE CAST(sum(s.memory_used) FILTER (h.lease_id IS NOT NULL) AS BIGINT) END AS memory_used
    FROM gpus g JOIN sampled s ON s.gpu_id = g.id LEFT JOIN live_shares h ON h.gpu_id = s.gpu_id AND h.lease_id = s.lease_id
    GROUP BY g.id, g.kind
),
placed AS (
    SELECT s.*, j.name, j.owner, j.priority, row_number() OVER (PARTITION BY s.gpu_id ORDER BY s.lease_id) AS place
    FROM live_shares s JOIN jobs j ON j.id = s.job_id
),
held AS (
    SELECT p.*, o.others, o.turns FROM placed p LEFT JOIN (
        SELECT gpu_id, string_agg(job_id || ' ' || name, ', ' ORDER BY lease_id) FILTER (place > 1) AS others,
               CASE WHEN count(*) > 1 AND bool_or(turn IS NOT NULL) THEN string_agg(
                   job_id || ' ' || name || CASE WHEN turn = 'has' THEN ' (has the turn, priority ' || priority || ')' ELSE '' END,
                   ' + ' ORDER BY coalesce(turn = 'has', false) DESC, priority DESC, lease_id) END AS turns
        FROM placed GROUP BY gpu_id
    ) o USING (gpu_id)
    WHERE p.place = 1
)
SELECT g.id, g.idx, g.node_id AS node, g.pool, g.kind, g.name, g.health, g.note, n.state AS node_state,
       CASE WHEN h.lease_id IS NOT NULL THEN 'busy'
            WHEN n.state IN ('stopped', 'gone') OR g.health = 'missing' THEN 'offline'
            WHEN g.health <> 'ok' THEN g.health
            WHEN n.state <> 'up' THEN n.state
            ELSE 'free' END AS state,
       h.lease_id, h.lease_state, h.job_id, h.name AS job, h.owner, h.share, h.others AS shared_with, h.turns, h.granted_at AS held_since,
       epoch(c.moment - h.granted_at) AS held,
       s.utilisation, s.memory_used, g.memory, s.power, s.temperature, s.ts AS sampled_at,
       g.warm, CASE WHEN g.warm IS NOT NULL THEN coalesce(w.state, 'loading') END AS warm_state
FROM gpus g
CROSS JOIN clock c
JOIN nodes n ON n.id = g.node_id
LEFT JOIN held h ON h.gpu_id = g.id
LEFT JOIN measured s ON s.gpu_id = g.id
LEFT JOIN (SELECT node_id, backbone, min(state) AS state FROM fork_servers WHERE backbone <> '' GROUP BY ALL) w
       ON w.node_id = g.node_id AND w.backbone = g.warm
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
COMMENT ON COLUMN gpus_now.share IS 'How that job shares it: exclusive, packed or switched';
COMMENT ON COLUMN gpus_now.shared_with IS 'Numbers and names of other jobs on it; NULL: none';
COMMENT ON COLUMN gpus_now.turns IS 'Jobs that take turns on it, first who had the turn when last looked at; NULL: none do';
COMMENT ON COLUMN gpus_now.held_since IS 'Since when it is held (UTC)';
COMMENT ON COLUMN gpus_now.held IS 'Seconds since then';
COMMENT ON COLUMN gpus_now.utilisation IS 'Busy share, 0 to 1, at the last sample; NULL: none in the last 10 minutes';
COMMENT ON COLUMN gpus_now.memory_used IS 'Memory in use (bytes) at the last sample';
COMMENT ON COLUMN gpus_now.memory IS 'Total memory (bytes), 0 for a slot';
COMMENT ON COLUMN gpus_now.power IS 'Power (W) at the last sample';
COMMENT ON COLUMN gpus_now.temperature IS 'Temperature (°C) at the last sample';
COMMENT ON COLUMN gpus_now.sampled_at IS 'Time of the last sample (UTC)';
COMMENT ON COLUMN gpus_now.warm IS 'Backbone in whose pool the policy counts it; NULL: in none';
COMMENT ON COLUMN gpus_now.warm_state IS 'ready: jobs that start from that backbone are forked; loading; or failed: they start in fresh processes';
