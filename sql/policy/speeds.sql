-- Speeds measured of jobs, with the product of the GPUs as in policy/gpus. $1: signatures.
SELECT signature, hash(gpu_name) AS product, model, gang, compute, within_node, across_nodes,
       peak_memory::DOUBLE AS peak_memory, utilisation
FROM speeds
WHERE list_contains($1::BIGINT[], signature)
