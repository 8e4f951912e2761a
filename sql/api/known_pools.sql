-- Pools that have GPUs, now or before, or jobs that have not ended.
SELECT pool FROM gpus UNION SELECT pool FROM jobs WHERE finished_at IS NULL ORDER BY pool
