-- The values of a metric that a job has reported, by step; where it trained a step again, the newer one. $1: job, $2: metric.
SELECT step, last(value ORDER BY lease_id, seq) AS value
FROM metrics
WHERE job_id = $1 AND name = $2 AND rank = 0 AND isfinite(value)
GROUP BY step
ORDER BY step
