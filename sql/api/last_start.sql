-- How a job started last: whether by a fork, and why not.
SELECT warm, cold_because FROM leases WHERE job_id = $1 AND warm IS NOT NULL ORDER BY id DESC LIMIT 1
