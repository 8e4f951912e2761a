-- Which task of each array job reached the best accuracy?
SELECT j.array_id, j.array_index, j.id, m.value AS accuracy, m.step
FROM metrics m
JOIN jobs j ON j.id = m.job_id
WHERE j.array_id IS NOT NULL AND m.name = 'accuracy'
QUALIFY row_number() OVER (PARTITION BY j.array_id ORDER BY m.value DESC, j.id) = 1
ORDER BY j.array_id
