-- GPU-hours by a label of the submitters, for accounting.
SELECT labels->>'$.team' AS team, count(*) AS jobs, sum(attained) / 3600 AS gpu_hours
FROM jobs
GROUP BY team
ORDER BY gpu_hours DESC
