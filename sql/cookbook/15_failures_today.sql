-- What failed in the last day, grouped by what happened?
SELECT outcome, message, count(*) AS attempts, count(DISTINCT job_id) AS jobs, list(DISTINCT node) AS nodes, max(ended_at) AS latest
FROM failures
WHERE ended_at > now() - INTERVAL 1 DAY
GROUP BY outcome, message
ORDER BY attempts DESC
