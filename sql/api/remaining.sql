-- Estimated seconds of work left of a job, NULL: not known.
SELECT remaining FROM estimates WHERE job_id = $1
