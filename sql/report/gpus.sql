-- GPUs and CPU slots that are there, or that a lease of the time held.
SELECT g.id, g.node_id, g.idx, g.kind, g.name
FROM gpus g JOIN nodes n ON n.id = g.node_id
WHERE (n.state NOT IN ('stopped', 'gone') AND g.health <> 'missing')
   OR g.id IN (
       SELECT h.gpu_id
       FROM lease_gpus h JOIN leases l ON l.id = h.lease_id
       WHERE epoch(l.granted_at) < $end AND coalesce(epoch(l.ended_at), $end) > $start
   )
ORDER BY g.node_id, g.idx
