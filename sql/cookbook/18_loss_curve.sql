-- The loss of one job, step by step. Put its number in the place of 1.
SELECT step, value AS loss, ts, lease_id
FROM metrics
WHERE job_id = 1 AND name = 'loss' AND rank = 0
ORDER BY step
