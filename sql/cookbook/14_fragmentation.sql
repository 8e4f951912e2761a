-- Is a big job waiting although enough GPUs are free in sum?
SELECT q.pool, q.id, q.name, q.gpus_min, p.free AS free_in_pool, max(n.free) AS most_free_on_a_runner
FROM queue q
JOIN pools_now p ON p.pool = q.pool
CROSS JOIN nodes_now n
WHERE q.gpus_min <= p.free
GROUP BY q.pool, q.id, q.name, q.gpus_min, p.free
ORDER BY q.id
