-- The parts of live leases by node: what each runner should have. Ranks go by node, then by GPU.
WITH parts AS (
    SELECT w.lease_id, w.node_id, list(lg.gpu_id ORDER BY g.idx) AS gpus
    FROM workers w
    JOIN leases l ON l.id = w.lease_id
    JOIN lease_gpus lg ON lg.lease_id = w.lease_id AND lg.node_id = w.node_id
    JOIN gpus g ON g.id = lg.gpu_id
    WHERE l.state <> 'ended' AND w.state <> 'exited'
    GROUP BY w.lease_id, w.node_id
),
members AS (
    SELECT w.lease_id, w.node_id,
           row_number() OVER (PARTITION BY w.lease_id ORDER BY w.node_id) - 1 AS node_rank,
           count(*) OVER (PARTITION BY w.lease_id) AS nodes,
           first_value(n.address) OVER (PARTITION BY w.lease_id ORDER BY w.node_id) AS address
    FROM workers w JOIN leases l ON l.id = w.lease_id JOIN nodes n ON n.id = w.node_id
    WHERE l.state <> 'ended'
)
SELECT p.node_id AS node, l.id AS lease, l.job_id AS job, l.attempt, p.gpus, l.gpu_count AS world_size,
       m.node_rank, m.nodes, CASE WHEN m.nodes > 1 THEN m.address ELSE '' END AS rendezvous,
       v.snapshot, l.attempt - 1 AS resume, l.stop_reason AS stop,
       coalesce(k.gpu_memory, 0) AS gpu_memory,
       coalesce((j.spec ->> '$.grace')::DOUBLE, 30.0) AS grace
FROM parts p
JOIN members m ON m.lease_id = p.lease_id AND m.node_id = p.node_id
JOIN leases l ON l.id = p.lease_id
JOIN jobs j ON j.id = l.job_id
LEFT JOIN provenance v ON v.job_id = j.id
LEFT JOIN work k ON k.job_id = j.id
ORDER BY p.node_id, l.id
