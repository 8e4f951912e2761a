-- Jobs that hold GPUs of a pool, with when they are expected to end, and when their leases do (NULL: with the job), the soonest first.
SELECT j.id, j.name, l.gpu_count AS gpus, j.state, j.priority, o.est_end, l.expires_at AS lease_end
FROM jobs j JOIN leases l ON l.id = j.lease_id JOIN outlook o ON o.job_id = j.id
WHERE j.pool = $1
ORDER BY least(o.est_end, lease_end) NULLS LAST, j.id
LIMIT 20
