-- Those of the given GPUs that no live lease holds and on which something may start.
SELECT g.id
FROM gpus g JOIN nodes n ON n.id = g.node_id
WHERE g.id IN (SELECT unnest($1::VARCHAR[])) AND g.health = 'ok' AND n.state = 'up'
  AND NOT EXISTS (SELECT 1 FROM lease_gpus lg JOIN leases l ON l.id = lg.lease_id WHERE lg.gpu_id = g.id AND l.state <> 'ended')
