-- Leases of a job with their GPUs, newest first.
SELECT l.*, list(lg.gpu_id ORDER BY lg.gpu_id) AS gpus, list(DISTINCT lg.node_id) AS nodes
FROM leases l LEFT JOIN lease_gpus lg ON lg.lease_id = l.id
WHERE l.job_id = $1
GROUP BY ALL
ORDER BY l.id DESC
