-- Jobs of a pool that were submitted since a moment, for what is to be expected: of servers nothing follows. $1: pool, $2: s since the epoch.
SELECT epoch(submitted_at) AS submitted, gpus_min AS gpus, CASE WHEN finished_at IS NOT NULL THEN run_time END AS duration,
       epoch(finished_at) AS ended, owner, model, id
FROM jobs
WHERE pool = $1 AND kind <> 'infer' AND submitted_at >= make_timestamp(CAST($2 * 1000000 AS BIGINT)) AND (finished_at IS NULL OR run_time > 0)
ORDER BY submitted_at, id
