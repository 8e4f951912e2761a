-- The parts of live leases, by lease and node.
SELECT w.lease_id, w.node_id, l.job_id, w.state, j.state, l.state, l.started_at IS NOT NULL
FROM workers w JOIN leases l ON l.id = w.lease_id JOIN jobs j ON j.id = l.job_id
WHERE w.lease_id IN (SELECT unnest($1::BIGINT[])) AND l.state <> 'ended' AND w.state <> 'exited'
