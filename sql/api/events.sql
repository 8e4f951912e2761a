-- Newest events of a job.
SELECT * FROM events WHERE job_id = $1 ORDER BY seq DESC LIMIT 50
