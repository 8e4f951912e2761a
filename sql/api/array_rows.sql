-- Tasks of the array that the job $1 belongs to, at most $2: those that run first, then those that failed, wait, and have ended.
SELECT *
FROM jobs_now
WHERE array_id = (SELECT array_id FROM jobs WHERE id = $1)
ORDER BY lease_id IS NULL, state <> 'failed', state NOT IN ('pending', 'submitted'), array_index
LIMIT $2::BIGINT
