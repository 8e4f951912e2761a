-- What the largest node of a pool has: GPUs, and memory of its largest GPU (bytes, 0: not known); and GPUs that jobs share now. $1: pool.
WITH nodes AS (
    SELECT count(*) AS gpus, max(memory) AS memory FROM gpus WHERE pool = $1 AND health <> 'missing' GROUP BY node_id
),
shared AS (
    SELECT s.gpu_id FROM live_shares s JOIN gpus g ON g.id = s.gpu_id WHERE g.pool = $1 GROUP BY s.gpu_id HAVING count(*) > 1
)
SELECT coalesce(max(gpus), 0), coalesce(max(memory), 0), (SELECT count(*) FROM shared) FROM nodes
