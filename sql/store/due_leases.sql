-- Live leases whose time is over: why, the pool, and the end of the lease (s since the epoch, NULL: it has none). $1: now (s since the epoch).
SELECT l.id, CASE WHEN epoch(l.started_at) + (j.spec ->> '$.timeout')::DOUBLE <= $1 THEN 'timeout' ELSE 'expired' END, j.pool,
       epoch(l.expires_at)
FROM leases l JOIN jobs j ON j.id = l.job_id
WHERE l.state IN ('granted', 'starting', 'running')
  AND (epoch(l.expires_at) <= $1 OR epoch(l.started_at) + (j.spec ->> '$.timeout')::DOUBLE <= $1)
ORDER BY l.id
