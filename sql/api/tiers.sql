-- Deadline steps of a job.
SELECT deadline, reward FROM tiers WHERE job_id = $1 ORDER BY deadline
