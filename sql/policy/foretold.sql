-- What is told of when a pool's waiting jobs are served: places, and expected starts (s since the epoch). $1: pool.
SELECT w.job_id, w.position, epoch(w.est_start)
FROM waiting w JOIN jobs j ON j.id = w.job_id
WHERE j.pool = $1 AND (w.position IS NOT NULL OR w.est_start IS NOT NULL)
