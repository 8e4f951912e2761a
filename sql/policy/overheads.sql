-- What suspensions cost: pool, code of the model as in policy/jobs, GPUs, seconds, and how many were measured.
SELECT pool, hash(model), gpu_count, overhead, suspensions FROM overheads
