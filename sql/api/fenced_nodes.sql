-- Runners that are not up and whose jobs stop by themselves: seconds of silence after which the last of them has had its grace ($1: of specs
-- that do not say).
SELECT n.id, n.fence_after + max(CASE WHEN l.id IS NULL THEN 0 ELSE coalesce(CAST(j.spec ->> '$.grace' AS DOUBLE), $1) END)
FROM nodes n
LEFT JOIN workers w ON w.node_id = n.id AND w.state <> 'exited'
LEFT JOIN leases l ON l.id = w.lease_id AND l.state <> 'ended'
LEFT JOIN jobs j ON j.id = l.job_id
WHERE n.fence_after IS NOT NULL AND n.state IN ('suspect', 'draining', 'drained')
GROUP BY n.id, n.fence_after
