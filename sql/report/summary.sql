-- The totals in one row: outcomes, JCT, waiting, deadlines, rewards, GPU-time, costs.
-- A job waits while it holds no GPU. A deadline is due when its job has ended or its last step has passed;
-- a job that a person cancelled is not counted. The reward is that of the earliest step that was met (002 ch. 5.3).
WITH chosen AS (
    SELECT j.id, j.state, j.outcome, j.preemptions, j.failures, j.submitted_at, j.finished_at,
           coalesce(epoch(j.finished_at), $now) - epoch(j.submitted_at) AS age
    FROM jobs j
    WHERE ($jobs IS NULL OR list_contains($jobs, j.id)) AND (j.finished_at IS NULL OR epoch(j.finished_at) >= $since)
),
held AS (
    SELECT l.job_id, sum(coalesce(epoch(l.ended_at), $now) - epoch(l.granted_at)) AS seconds FROM leases l GROUP BY l.job_id
),
per_job AS (
    SELECT c.id, c.state, c.preemptions, c.failures, c.age, greatest(c.age - coalesce(h.seconds, 0), 0) AS waited,
           o.gpu_hours * 3600 AS gpu_seconds, o.cost, o.storage_cost
    FROM chosen c JOIN costs o ON o.job_id = c.id LEFT JOIN held h ON h.job_id = c.id
),
deadlines AS (
    SELECT c.id, max(t.reward) AS possible, c.finished_at IS NOT NULL OR epoch(max(t.deadline)) <= $now AS due,
           coalesce(max(t.reward) FILTER (c.state = 'completed' AND c.finished_at <= t.deadline), 0) AS earned,
           c.state = 'completed' AND c.finished_at <= max(t.deadline) AS met
    FROM chosen c JOIN tiers t ON t.job_id = c.id
    WHERE coalesce(c.outcome, '') <> 'cancelled'
    GROUP BY c.id, c.state, c.finished_at
),
slo AS (
    SELECT count(*) AS promised, count(*) FILTER (due) AS due, count(*) FILTER (met) AS met,
           coalesce(sum(earned) FILTER (due), 0) AS earned, coalesce(sum(possible) FILTER (due), 0) AS possible
    FROM deadlines
),
whole AS (
    SELECT count(*) AS jobs,
           count(*) FILTER (state = 'completed') AS completed,
           count(*) FILTER (state = 'failed') AS failed,
           count(*) FILTER (state = 'cancelled') AS cancelled,
           count(*) FILTER (state IN ('submitted', 'pending')) AS waiting,
           count(*) FILTER (state NOT IN ('submitted', 'pending', 'completed', 'failed', 'cancelled')) AS running,
           avg(age) FILTER (state = 'completed') AS jct_mean,
           quantile_cont(age, 0.5) FILTER (state = 'completed') AS jct_median,
           quantile_cont(age, 0.99) FILTER (state = 'completed') AS jct_p99,
           max(age) FILTER (state = 'completed') AS jct_max,
           avg(waited) AS waiting_mean, quantile_cont(waited, 0.5) AS waiting_median, quantile_cont(waited, 0.99) AS waiting_p99,
           CAST(coalesce(sum(preemptions), 0) AS BIGINT) AS preemptions,
           CAST(coalesce(sum(failures), 0) AS BIGINT) AS failures,
           coalesce(sum(gpu_seconds), 0) AS gpu_seconds, coalesce(sum(cost), 0) AS cost, coalesce(sum(storage_cost), 0) AS storage_cost
    FROM per_job
)
SELECT w.jobs, w.completed, w.failed, w.cancelled, w.waiting, w.running,
       w.jct_mean, w.jct_median, w.jct_p99, w.jct_max, w.waiting_mean, w.waiting_median, w.waiting_p99,
       w.preemptions, w.failures, w.gpu_seconds, w.cost, w.storage_cost, s.promised, s.due, s.met, s.earned, s.possible
FROM whole w CROSS JOIN slo s
