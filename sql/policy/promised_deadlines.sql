-- Jobs whose deadline was told as safe.
SELECT job_id FROM deadline_promises
