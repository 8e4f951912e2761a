-- Schedulable jobs of a pool, in order of submission: those that wait for GPUs and may have some now, and those that hold
-- GPUs. Times in seconds since the epoch. $1: pool, $2: now (s since the epoch).
WITH candidates AS (
    SELECT j.*, p.step, p.seconds_per_step AS pace, coalesce(p.total_steps, j.total_steps) AS steps,
           j.array_cap IS NOT NULL AS capped
    FROM jobs j LEFT JOIN progress p ON p.job_id = j.id
    WHERE j.pool = $1 AND j.finished_at IS NULL
      AND (j.lease_id IS NOT NULL
           OR (j.state = 'pending' AND NOT j.held AND (j.not_before IS NULL OR epoch(j.not_before) <= $2)))
),
active_tasks AS (
    SELECT array_id, count(*) AS running FROM jobs WHERE array_id IS NOT NULL AND lease_id IS NOT NULL GROUP BY array_id
),
eligible AS (
    SELECT c.*
    FROM candidates c LEFT JOIN active_tasks a ON a.array_id = c.array_id
    QUALIFY c.lease_id IS NOT NULL OR NOT c.capped
         OR row_number() OVER (PARTITION BY c.array_id, c.lease_id IS NULL ORDER BY c.id) <= c.array_cap - coalesce(a.running, 0)
),
known AS (
    SELECT model, gpu_count, min(seconds_per_step) AS pace, avg(duration) AS duration, max(peak_memory) AS memory
    FROM profiles GROUP BY model, gpu_count
)
SELECT e.id,
       epoch(e.submitted_at) AS submitted_at,
       CASE WHEN e.lease_id IS NULL THEN 0 WHEN e.state = 'suspending' THEN 2 ELSE 1 END AS phase,
       e.gpus_min, e.gpus_max, e.priority,
       CASE e.demand WHEN 'best-effort' THEN 0 WHEN 'soft' THEN 1 ELSE 2 END AS demand,
       coalesce(epoch(e.deadline), 'infinity'::DOUBLE) AS deadline,
       e.attained + coalesce(greatest($2 - epoch(l.started_at), 0) * l.gpu_count, 0) AS attained,
       e.run_time + coalesce(greatest($2 - epoch(l.started_at), 0), 0) AS run_time,
       coalesce(greatest($2 - epoch(l.granted_at), 0), 0) AS lease_time,
       coalesce(
           CASE WHEN e.steps IS NOT NULL THEN greatest(e.steps - coalesce(e.step, 0), 0) * coalesce(e.pace, k.pace) END,
           greatest(coalesce(e.est_duration, k.duration) - e.run_time - coalesce(greatest($2 - epoch(l.started_at), 0), 0), 0),
           'nan'::DOUBLE) AS remaining,
       CASE WHEN e.gpu_memory > 0 THEN e.gpu_memory ELSE coalesce(k.memory, 0) END::DOUBLE AS gpu_memory,
       e.preemptions,
       (hash(e.owner) >> 1)::BIGINT AS user_code, (hash(e.model) >> 1)::BIGINT AS model_code,
       coalesce(e.lease_id, 0) AS lease_id,
       coalesce(epoch(l.expires_at), 'infinity'::DOUBLE) AS expires_at
FROM eligible e
LEFT JOIN leases l ON l.id = e.lease_id
LEFT JOIN known k ON k.model = e.model AND k.gpu_count = e.gpus_min
ORDER BY e.submitted_at, e.id
