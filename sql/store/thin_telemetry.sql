-- One sample a minute and GPU of what is older than $1, nothing of what is older than $2 (s since the epoch).
DELETE FROM telemetry
WHERE epoch(ts) < $2
   OR (epoch(ts) < $1 AND (gpu_id, ts) NOT IN (
        SELECT (gpu_id, min(ts)) FROM telemetry WHERE epoch(ts) < $1 GROUP BY gpu_id, time_bucket(INTERVAL 1 MINUTE, ts)))
