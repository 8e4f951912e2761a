-- Last submissions of schedules. $1: seconds.
UPDATE schedules
SET last_at = last_at + to_microseconds(CAST($1 * 1000000 AS BIGINT))
WHERE last_at IS NOT NULL
