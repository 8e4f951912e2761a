-- Pools that have GPUs, now or before, jobs that have not ended, or a policy that was set.
SELECT pool FROM gpus
UNION SELECT pool FROM jobs WHERE finished_at IS NULL
UNION SELECT pool FROM policy_settings
ORDER BY pool
