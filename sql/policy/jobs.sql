-- Schedulable jobs of a pool, in order of submission: those that wait for GPUs and may have some now, and those that hold
-- GPUs. Times in seconds since the epoch. $1: pool, $2: now (s since the epoch).
WITH capped AS (  -- waiting tasks of arrays that may not start yet, as enough of their array run
    SELECT j.id
    FROM jobs j
    WHERE j.pool = $1 AND j.array_cap IS NOT NULL AND j.finished_at IS NULL AND j.state IN ('submitted', 'pending')
      AND NOT j.held AND (j.not_before IS NULL OR epoch(j.not_before) <= $2)
    QUALIFY row_number() OVER (PARTITION BY j.array_id ORDER BY j.id)
            > j.array_cap - (SELECT count(*) FROM jobs a WHERE a.array_id = j.array_id AND a.lease_id IS NOT NULL)
)
SELECT j.id,
       epoch(j.submitted_at) AS submitted_at,
       CASE WHEN j.lease_id IS NULL THEN 0 WHEN j.state = 'suspending' THEN 2 ELSE 1 END AS phase,
       j.gpus_min, j.gpus_max, j.priority,
       CASE j.demand WHEN 'best-effort' THEN 0 WHEN 'soft' THEN 1 ELSE 2 END AS demand,
       coalesce(epoch(j.deadline), 'infinity'::DOUBLE) AS deadline,
       j.attained + coalesce(greatest($2 - epoch(l.started_at), 0) * l.gpu_count, 0) AS attained,
       e.ran AS run_time,
       coalesce(greatest($2 - epoch(l.granted_at), 0), 0) AS lease_time,
       coalesce(e.remaining, 'nan'::DOUBLE) AS remaining,
       coalesce(e.gpu_memory, 0)::DOUBLE AS gpu_memory,
       j.preemptions,
       (hash(j.owner) >> 1)::BIGINT AS user_code, (hash(j.model) >> 1)::BIGINT AS model_code,
       coalesce(j.lease_id, 0) AS lease_id,
       coalesce(epoch(l.expires_at), 'infinity'::DOUBLE) AS expires_at
FROM jobs j
JOIN estimates e ON e.job_id = j.id
LEFT JOIN leases l ON l.id = j.lease_id
WHERE j.pool = $1 AND j.finished_at IS NULL
  AND (j.lease_id IS NOT NULL
       OR (j.state = 'pending' AND NOT j.held AND (j.not_before IS NULL OR epoch(j.not_before) <= $2)
           AND j.id NOT IN (SELECT id FROM capped)))
ORDER BY j.submitted_at, j.id
