-- Live leases whose time is over, and why. $1: now (s since the epoch).
SELECT l.id, CASE WHEN epoch(l.expires_at) <= $1 THEN 'expired' ELSE 'timeout' END
FROM leases l JOIN jobs j ON j.id = l.job_id
WHERE l.state IN ('granted', 'starting', 'running')
  AND (epoch(l.expires_at) <= $1 OR epoch(l.started_at) + (j.spec ->> '$.timeout')::DOUBLE <= $1)
ORDER BY l.id
