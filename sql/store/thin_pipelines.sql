-- Of steps older than $1 (s since the epoch) those in which something was set or refused, one an hour of each pipeline beside them, and its last.
DELETE FROM pipelines
WHERE epoch(ts) < $1
  AND (lease_id, rank, seq) NOT IN (
    SELECT (lease_id, rank, seq) FROM pipelines WHERE epoch(ts) < $1 AND (action <> 0 OR refused IS NOT NULL)
    UNION ALL
    SELECT (lease_id, rank, min(seq)) FROM pipelines WHERE epoch(ts) < $1
    GROUP BY lease_id, rank, pipeline, time_bucket(INTERVAL 1 HOUR, ts)
    UNION ALL
    SELECT (lease_id, rank, max(seq)) FROM pipelines GROUP BY lease_id, rank, pipeline)
