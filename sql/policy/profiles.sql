-- Speeds measured of jobs of a pool, on its GPUs; of several products the slowest counts. $1: signatures, $2: pool.
SELECT s.signature, any_value(s.model) AS model, max(s.gang) AS gang, max(s.compute) AS compute, max(s.within_node) AS within_node,
       max(s.across_nodes) AS across_nodes
FROM speeds s
WHERE list_contains($1::BIGINT[], s.signature) AND s.gpu_name IN (SELECT g.name FROM gpus g WHERE g.pool = $2)
GROUP BY s.signature
ORDER BY s.signature
