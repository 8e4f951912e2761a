-- What do users' jobs cost in each pool, GPU-time and storage, at the prices of config.toml?
SELECT owner, pool, count(*) AS jobs, sum(gpu_hours) AS gpu_hours, sum(stored_bytes) AS stored_bytes, sum(cost) AS cost
FROM costs
GROUP BY owner, pool
ORDER BY cost DESC
