-- Leases of a job with their GPUs, newest first; `beside`: for a lease that shared them, numbers of the other jobs on them. $1: job.
WITH beside AS (
    SELECT l.id, list(DISTINCT o.job_id ORDER BY o.job_id) AS jobs
    FROM leases l JOIN lease_gpus m ON m.lease_id = l.id JOIN lease_gpus h ON h.gpu_id = m.gpu_id AND h.lease_id <> l.id
    JOIN leases o ON o.id = h.lease_id
    WHERE l.job_id = $1 AND l.share <> 'exclusive' AND o.share <> 'exclusive' AND coalesce(o.granted_at < l.ended_at, true)
      AND coalesce(l.granted_at < o.ended_at, true)
    GROUP BY l.id
)
SELECT l.*, list(lg.gpu_id ORDER BY lg.gpu_id) AS gpus, list(DISTINCT lg.node_id) AS nodes, coalesce(any_value(b.jobs), []) AS beside
FROM leases l LEFT JOIN lease_gpus lg ON lg.lease_id = l.id LEFT JOIN beside b ON b.id = l.id
WHERE l.job_id = $1
GROUP BY ALL
ORDER BY l.id DESC
