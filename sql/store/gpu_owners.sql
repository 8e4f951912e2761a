-- Those of the given GPUs that belong to other runners than $2, and whether they are missed there or held by a live lease.
SELECT g.id, g.node_id, n.state, n.host, g.health = 'missing' AS missing,
       EXISTS (FROM lease_gpus h JOIN leases l ON l.id = h.lease_id WHERE h.gpu_id = g.id AND l.state <> 'ended') AS held
FROM gpus g JOIN nodes n ON n.id = g.node_id
WHERE g.id IN (SELECT unnest($1::VARCHAR[])) AND g.node_id <> $2
ORDER BY g.idx, g.id
