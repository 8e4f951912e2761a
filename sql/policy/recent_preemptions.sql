-- Who of a pool gave way to whom lately, and when last. $1: pool, $2: since (s since the epoch).
SELECT l.job_id, l.stop_for, epoch(max(l.stop_at))
FROM leases l JOIN jobs j ON j.id = l.job_id
WHERE j.pool = $1 AND l.stop_reason = 'preempted' AND l.stop_for IS NOT NULL AND epoch(l.stop_at) > $2
GROUP BY l.job_id, l.stop_for
