-- Leases with a living part on a runner that have no end of their own, as their jobs serve models.
SELECT w.lease_id
FROM workers w JOIN leases l ON l.id = w.lease_id JOIN jobs j ON j.id = l.job_id
WHERE w.node_id = $1 AND w.state <> 'exited' AND l.state <> 'ended' AND j.kind = 'infer'
ORDER BY w.lease_id
