-- The GPUs of live leases: a row for each GPU, those of a lease together in the order of its ranks.
SELECT l.id AS lease, l.job_id AS job, l.attempt, l.gpu_count, l.profile, coalesce(l.share, 'exclusive') AS share, l.stop_reason AS stop, j.priority, j.kind,
       coalesce(j.kept_memory, 0) AS kept_memory,
       w.node_id AS node, w.state = 'exited' AS exited, w.state <> 'granted' AS taken_up, w.state NOT IN ('granted', 'starting') AS begun, w.port,
       n.address, n.host, n.boot_id,
       j.place, n.home, list_value(n.place, n.host || ':' || n.home) AS home_places, n.shared_place, n.checkpoints AS shared_checkpoints, lg.gpu_id AS gpu
FROM leases l
JOIN jobs j ON j.id = l.job_id
JOIN workers w ON w.lease_id = l.id
JOIN nodes n ON n.id = w.node_id
JOIN lease_gpus lg ON lg.lease_id = w.lease_id AND lg.node_id = w.node_id
JOIN gpus g ON g.id = lg.gpu_id
WHERE l.state <> 'ended'
ORDER BY l.id, w.node_id, g.idx
