-- Jobs whose deadline was announced to be at risk.
SELECT DISTINCT job_id FROM events WHERE kind = 'job.deadline-at-risk'
