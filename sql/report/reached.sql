-- The last value of every metric but losses, as rank 0 of each job reported it.
SELECT m.job_id, m.name, arg_max(m.value, m.ts) AS value
FROM metrics m
WHERE list_contains($jobs, m.job_id) AND m.rank = 0 AND m.name NOT LIKE '%loss%' AND m.value IS NOT NULL AND NOT isnan(m.value)
GROUP BY m.job_id, m.name
ORDER BY m.job_id, m.name
