-- Leases that have measured their speed, with their programs and GPUs, beside the known speed. The first GPU stands for all.
WITH held AS (
    SELECT lease_id, min(gpu_id) AS gpu_id, count(DISTINCT node_id) AS nodes
    FROM lease_gpus
    WHERE lease_id IN (SELECT unnest($1::BIGINT[]))
    GROUP BY lease_id
)
SELECT l.id, l.job_id, j.total_steps, l.profile, l.share, l.gpu_count, h.nodes, j.signature, j.model, j.kind, j.priority, j.gpus_min AS gang, g.name AS gpu_name,
       s.compute, s.within_node, s.across_nodes, s.peak_memory, s.samples
FROM held h
JOIN leases l ON l.id = h.lease_id
JOIN jobs j ON j.id = l.job_id
JOIN gpus g ON g.id = h.gpu_id
LEFT JOIN speeds s ON s.signature = j.signature AND s.gpu_name = g.name
ORDER BY l.id
