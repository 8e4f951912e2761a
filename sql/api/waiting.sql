-- Why a job waits.
SELECT * EXCLUDE (job_id) FROM waiting WHERE job_id = $1
