-- Short queries of the live page, by name; longer ones are in pages/.

-- name: cost
-- The cost of a job. $1: job.
SELECT gpu_hours, gpu_cost, stored_bytes, storage_cost, cost FROM costs WHERE job_id = $1

-- name: decisions
-- The newest decisions of policies that changed something or failed. $1: pool, NULL: all; $2: most rows.
SELECT id, pool, policy, ts, last_ts, ticks, jobs_seen, status, gap, plan_seconds, outcome, error,
       json_array_length(plan -> '$.starts') AS starts, json_array_length(plan -> '$.stops') AS stops
FROM decisions
WHERE ($1::VARCHAR IS NULL OR pool = $1) AND (error IS NOT NULL OR starts > 0 OR coalesce(stops, 0) > 0)
ORDER BY id DESC
LIMIT $2

-- name: now_gpus
-- Every GPU whose runner has not left, with its newest sample.
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

-- name: now_shares
-- The jobs on each GPU, the earliest first.
SELECT gpu_id, job_id, share, turn, epoch(granted_at) AS since FROM live_shares ORDER BY gpu_id, lease_id

-- name: now_warm
-- Backbones that are kept warm on present runners.
SELECT f.node_id AS node, f.backbone, min(f.state) AS state, sum(f.memory) AS memory
FROM fork_servers f JOIN nodes n ON n.id = f.node_id
WHERE n.state NOT IN ('stopped', 'gone') AND f.backbone <> ''
GROUP BY ALL
ORDER BY f.node_id, f.backbone

-- name: studies
-- Studies of the simulator, the newest first. $1: at most so many.
SELECT study, any_value(trace) AS trace, list(DISTINCT policy ORDER BY policy) AS policies, count(*) AS runs,
       count(*) FILTER (status = 'failed') AS failed, max(ran_at) AS ran_at, arg_max(ran_by, id) AS ran_by
FROM sim_runs
GROUP BY study
ORDER BY max(id) DESC
LIMIT $1

-- name: study_jcts
-- For each run of a study the times by which shares of its finished jobs were done. $1: study. Times are seconds.
WITH submitted AS (
    SELECT r.id, s.ended - t.submitted AS jct
    FROM sim_runs r JOIN sim_jobs s ON s.run_id = r.id JOIN trace_jobs t ON t.trace_id = r.trace_id AND t.job = s.job
    WHERE r.study = $1 AND s.ended IS NOT NULL AND NOT s.rejected
)
SELECT id, quantile_cont(jct, [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0]) AS jcts
FROM submitted
GROUP BY id
ORDER BY id

-- name: study_usage
-- State of the simulated cluster over time, for each run of a study. $1: study, $2: number of pieces.
WITH numbered AS (
    SELECT u.run_id, u.ts, u.busy, u.waiting, row_number() OVER (PARTITION BY u.run_id ORDER BY u.ts) AS n, count(*) OVER (PARTITION BY u.run_id) AS many
    FROM sim_usage u JOIN sim_runs r ON r.id = u.run_id
    WHERE r.study = $1
)
SELECT run_id, list(ts ORDER BY ts) AS moments, list(busy ORDER BY ts) AS busy, list(waiting ORDER BY ts) AS waiting
FROM numbered
WHERE n % greatest(many // $2, 1) = 0 OR n IN (1, many)
GROUP BY run_id
ORDER BY run_id
