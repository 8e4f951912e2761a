-- What the largest node of a pool has: GPUs, and memory of its largest GPU (bytes, 0: not known). $1: pool.
SELECT coalesce(max(gpus), 0), coalesce(max(memory), 0) FROM (
    SELECT count(*) AS gpus, max(memory) AS memory FROM gpus WHERE pool = $1 AND health <> 'missing' GROUP BY node_id
)
