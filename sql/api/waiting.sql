-- Why a job waits, and when it should start.
SELECT w.* EXCLUDE (job_id) REPLACE (o.est_start AS est_start)
FROM waiting w JOIN outlook o ON o.job_id = w.job_id
WHERE w.job_id = $1
