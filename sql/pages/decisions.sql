-- The newest decisions of the policies that did something, or failed. $1: pool, NULL: of all; $2: at most so many.
SELECT id, pool, policy, ts, last_ts, ticks, jobs_seen, status, gap, plan_seconds, outcome, error,
       json_array_length(plan -> '$.starts') AS starts, json_array_length(plan -> '$.stops') AS stops
FROM decisions
WHERE ($1::VARCHAR IS NULL OR pool = $1) AND (error IS NOT NULL OR starts > 0 OR coalesce(stops, 0) > 0)
ORDER BY id DESC
LIMIT $2
