-- Seconds that a job takes, as far as is known. $1: the job.
SELECT duration FROM work WHERE job_id = $1
