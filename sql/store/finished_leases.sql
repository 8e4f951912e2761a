-- Those of the given live leases all of whose workers are gone, with how each of them ended.
SELECT l.id, list(coalesce(w.outcome, 'lost') ORDER BY w.node_id), list(w.exit_code ORDER BY w.node_id),
       list(w.message ORDER BY w.node_id), any_value(l.stop_reason), max(epoch(w.ended_at)), list(w.node_id)
FROM leases l JOIN workers w ON w.lease_id = l.id
WHERE l.id IN (SELECT unnest($1::BIGINT[])) AND l.state <> 'ended'
GROUP BY l.id
HAVING bool_and(w.state = 'exited')
ORDER BY l.id
