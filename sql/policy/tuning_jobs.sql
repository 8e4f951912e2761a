-- How many jobs `tuning_history` has. $1: pool, $2: s since the epoch.
SELECT count(*)
FROM jobs
WHERE pool = $1 AND submitted_at >= make_timestamp(CAST($2 * 1000000 AS BIGINT)) AND (finished_at IS NULL OR run_time > 0)
