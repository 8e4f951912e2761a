-- Deadline steps of a pool's jobs that have not ended, earliest first. $1: pool.
SELECT t.job_id, epoch(t.deadline) AS deadline, t.reward
FROM tiers t JOIN jobs j ON j.id = t.job_id
WHERE j.pool = $1 AND j.finished_at IS NULL
ORDER BY t.job_id, t.deadline
