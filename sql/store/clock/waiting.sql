-- Expected starts of jobs. $1: seconds.
UPDATE waiting
SET est_start = est_start + to_microseconds(CAST($1 * 1000000 AS BIGINT)),
    updated_at = updated_at + to_microseconds(CAST($1 * 1000000 AS BIGINT))
