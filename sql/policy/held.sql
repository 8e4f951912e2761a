-- Which GPUs live leases of a pool's jobs hold. $1: pool.
SELECT l.job_id, lg.gpu_id
FROM leases l JOIN jobs j ON j.lease_id = l.id JOIN lease_gpus lg ON lg.lease_id = l.id
WHERE j.pool = $1 AND l.state <> 'ended'
ORDER BY l.job_id, lg.node_id, lg.gpu_id
