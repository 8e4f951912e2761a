-- GPUs of a pool, also those that are not there now. $1: pool.
SELECT id, node_id, idx, hash(name) AS product, memory, health, warm, warm_since FROM gpus WHERE pool = $1
