-- What was last told of the turns of live leases that are switched. $1: leases.
SELECT w.lease_id, w.node_id, w.turn, w.waited
FROM workers w JOIN leases l ON l.id = w.lease_id
WHERE w.lease_id IN (SELECT unnest($1::BIGINT[])) AND l.share = 'switched' AND l.state <> 'ended' AND w.state <> 'exited'
ORDER BY w.lease_id
