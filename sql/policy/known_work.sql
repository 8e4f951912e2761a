-- Where what is known of the work of a pool's jobs comes from, and whose end has been ordered. $1: pool.
SELECT j.id, j.model, j.array_id, w.ahead IS NOT NULL AS by_steps, w.duration AS whole, j.est_duration IS NOT NULL AS said, j.cancel_requested
FROM jobs j JOIN work w ON w.job_id = j.id
WHERE j.pool = $1 AND j.finished_at IS NULL
