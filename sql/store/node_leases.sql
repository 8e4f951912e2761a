-- Leases with a living part on a runner.
SELECT w.lease_id
FROM workers w JOIN leases l ON l.id = w.lease_id
WHERE w.node_id = $1 AND w.state <> 'exited' AND l.state <> 'ended'
ORDER BY w.lease_id
