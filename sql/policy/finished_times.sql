-- How long the newest completed jobs of a pool ran, and what their submitters had expected (NULL: nothing). $1: pool, $2: how many.
SELECT model, run_time AS seconds, est_duration AS estimate
FROM jobs
WHERE pool = $1 AND state = 'completed' AND run_time > 0
ORDER BY finished_at DESC, id DESC
LIMIT $2
