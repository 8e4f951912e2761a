-- Jobs that hold GPUs of a pool, with when they are expected to end, and when their leases do (NULL: with the job), the soonest first.
SELECT j.id, j.name, l.gpu_count AS gpus, j.state, j.priority, make_timestamp(epoch_us(now())) + to_seconds(e.remaining) AS est_end,
       l.expires_at AS lease_end
FROM jobs j JOIN leases l ON l.id = j.lease_id JOIN estimates e ON e.job_id = j.id
WHERE j.pool = $1
ORDER BY least(est_end, lease_end) NULLS LAST, j.id
LIMIT 20
