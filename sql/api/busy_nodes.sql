-- Runners with a living part of a lease.
SELECT DISTINCT w.node_id FROM workers w JOIN leases l ON l.id = w.lease_id WHERE w.state <> 'exited' AND l.state <> 'ended'
