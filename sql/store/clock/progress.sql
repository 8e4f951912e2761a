-- Last reports of jobs that move. $1: seconds, $2: the new time (s since the epoch).
UPDATE progress
SET updated_at = updated_at + to_microseconds(CAST($1 * 1000000 AS BIGINT))
WHERE job_id IN (SELECT id FROM jobs WHERE finished_at IS NULL OR epoch(finished_at) > $2)
