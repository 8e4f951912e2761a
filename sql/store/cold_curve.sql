-- What jobs of a lesson ($1) that trained from their backbone had as metric ($2), the mean by step, the first $3 steps.
SELECT m.step, avg(m.value) AS value
FROM adapters a JOIN metrics m ON m.job_id = a.job_id
WHERE a.lesson = $1 AND NOT a.begun AND NOT EXISTS (FROM beginnings b WHERE b.job_id = a.job_id AND b.state <> 'cold')
  AND m.name = $2 AND m.rank = 0 AND isfinite(m.value) AND m.step > 0
GROUP BY m.step ORDER BY m.step LIMIT $3
