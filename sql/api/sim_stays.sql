-- The GPUs of the jobs of sim_history.sql, lease by lease; a GPU is its position in the pool. $1: pool, $2: s since the epoch.
-- `gpu_seconds`: for a lease that shared its GPUs, its part of their time; NULL: all of it.
WITH places AS (
    SELECT id, row_number() OVER (ORDER BY node_id, idx) - 1 AS place FROM gpus WHERE pool = $1
),
held AS (
    SELECT h.lease_id, list(p.place ORDER BY p.place) AS gpus FROM lease_gpus h JOIN places p ON p.id = h.gpu_id GROUP BY h.lease_id
),
divided AS (
    SELECT t.lease_id, sum(t.gpu_seconds) AS gpu_seconds FROM gpu_time t JOIN leases l ON l.id = t.lease_id WHERE l.share <> 'exclusive' GROUP BY t.lease_id
)
SELECT l.job_id, epoch(l.granted_at) AS begins, epoch(l.ended_at) AS ends, l.gpu_count, coalesce(w.gpus, []) AS gpus, d.gpu_seconds
FROM leases l
JOIN jobs j ON j.id = l.job_id
LEFT JOIN held w ON w.lease_id = l.id
LEFT JOIN divided d ON d.lease_id = l.id
WHERE j.pool = $1 AND j.kind <> 'infer' AND j.finished_at IS NOT NULL AND j.run_time > 0
      AND epoch(coalesce(j.eligible_at, j.submitted_at)) >= $2::DOUBLE
      AND l.ended_at IS NOT NULL
ORDER BY begins, l.id
