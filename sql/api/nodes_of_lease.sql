-- Runners on which a live lease is. $1: the lease.
SELECT w.node_id FROM workers w WHERE w.lease_id = $1 AND w.state <> 'exited'
