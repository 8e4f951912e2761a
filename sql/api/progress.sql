-- Progress of a job.
SELECT * EXCLUDE (job_id) FROM progress WHERE job_id = $1
