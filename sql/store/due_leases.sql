-- Live leases whose time is over: why, the pool, and the end of the lease (s since the epoch, NULL: it has none). A timeout does not count
-- what a lease waits for turns on its GPU, nor is one stopped while it waits. $1: now (s since the epoch).
WITH timed AS (
    SELECT l.id, j.pool, epoch(l.expires_at) AS expires_at,
           epoch(l.started_at) + (j.spec ->> '$.timeout')::DOUBLE + coalesce(w.waited, 0) <= $1 AND NOT coalesce(w.waits, false) AS timed_out
    FROM leases l JOIN jobs j ON j.id = l.job_id
    LEFT JOIN (SELECT lease_id, sum(waited) AS waited, bool_or(turn = 'waits') AS waits FROM workers GROUP BY lease_id) w ON w.lease_id = l.id
    WHERE l.state IN ('granted', 'starting', 'running')
)
SELECT id, CASE WHEN timed_out THEN 'timeout' ELSE 'expired' END, pool, expires_at
FROM timed
WHERE timed_out OR expires_at <= $1
ORDER BY id
