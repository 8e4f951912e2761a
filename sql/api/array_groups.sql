-- Tasks of the array that the job $1 belongs to, those in one state for one reason together; how one completed does not matter.
WITH tasks AS (
    SELECT state, held, gpus, array_index,
           CASE WHEN held AND state = 'submitted' THEN 'held: ''stoker release ' || regexp_replace(name, '\[\d+\]$', '') || ''' lets them go'
                WHEN state <> 'completed' THEN reason END AS why
    FROM jobs_now
    WHERE array_id = (SELECT array_id FROM jobs WHERE id = $1)
)
SELECT state, held, why, count(*) AS tasks, sum(gpus)::BIGINT AS gpus, list(array_index ORDER BY array_index) AS indices
FROM tasks
GROUP BY state, held, why
ORDER BY sum(gpus) = 0, state <> 'failed', state NOT IN ('pending', 'submitted'), count(*) DESC, min(array_index)
