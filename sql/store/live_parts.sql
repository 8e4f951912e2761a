-- The parts of live leases, by lease and node, with what their reports are measured by.
SELECT w.lease_id, w.node_id, w.state, l.job_id, j.state, l.state, epoch(l.granted_at), epoch(l.started_at), j.total_steps, j.spec ->> '$.stop.metric',
       l.profile, coalesce(l.share, 'exclusive')
FROM workers w JOIN leases l ON l.id = w.lease_id JOIN jobs j ON j.id = l.job_id
WHERE w.lease_id IN (SELECT unnest($1::BIGINT[])) AND l.state <> 'ended' AND w.state <> 'exited'
