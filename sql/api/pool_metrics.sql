-- Every pool that is or was in use: its GPUs, its queue, how long its jobs waited for their first start, and its open deadlines by risk.
WITH pools AS (
    SELECT 'default' AS pool UNION SELECT pool FROM gpus UNION SELECT pool FROM jobs UNION SELECT pool FROM policy_settings
),
held AS (SELECT DISTINCT gpu_id FROM live_shares),
offered AS (
    SELECT g.pool, count(*) AS gpus, count(h.gpu_id) AS busy
    FROM gpus g JOIN nodes n ON n.id = g.node_id AND n.state NOT IN ('gone', 'stopped') LEFT JOIN held h ON h.gpu_id = g.id
    WHERE g.health <> 'missing'
    GROUP BY g.pool
),
asked AS (
    SELECT pool, count(*) FILTER (state IN ('submitted', 'pending')) AS waiting, count(*) FILTER (lease_id IS NOT NULL) AS active,
           coalesce(sum(gpus_min) FILTER (state = 'pending'), 0) AS gpus_wanted,
           coalesce(max(epoch(make_timestamp(epoch_us(now())) - coalesce(eligible_at, submitted_at))) FILTER (state = 'pending'), 0) AS longest,
           count(first_start_at) AS starts,  -- a job held after its first start became eligible again later
           coalesce(sum(greatest(epoch(first_start_at - CASE WHEN eligible_at <= first_start_at THEN eligible_at ELSE submitted_at END), 0)), 0)
               AS waited
    FROM jobs
    GROUP BY pool
),
timed AS (
    SELECT j.pool, count(*) FILTER (o.deadline_risk = 'safe') AS safe, count(*) FILTER (o.deadline_risk = 'at risk') AS at_risk,
           count(*) FILTER (o.deadline_risk = 'missed') AS missed, count(*) FILTER (o.deadline_risk = 'unknown') AS unknown
    FROM outlook o JOIN jobs j ON j.id = o.job_id
    GROUP BY j.pool
)
SELECT pool, coalesce(gpus, 0) AS gpus, coalesce(busy, 0) AS gpus_held, coalesce(gpus_wanted, 0) AS gpus_wanted,
       coalesce(waiting, 0) AS waiting, coalesce(active, 0) AS active, greatest(coalesce(longest, 0), 0) AS longest,
       coalesce(starts, 0) AS starts, coalesce(waited, 0) AS waited,
       coalesce(safe, 0) AS safe, coalesce(at_risk, 0) AS at_risk, coalesce(missed, 0) AS missed, coalesce(unknown, 0) AS unknown
FROM pools LEFT JOIN offered USING (pool) LEFT JOIN asked USING (pool) LEFT JOIN timed USING (pool)
ORDER BY pool
