-- Where a job came from.
SELECT * EXCLUDE (job_id) FROM provenance WHERE job_id = $1
