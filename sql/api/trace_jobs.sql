-- Jobs of trace $1 from position $2 on, $3 of them at most.
SELECT key, submitted, duration, gpus_min, gpus_max, user_name, pool, model, batch_size, iterations, status, priority, estimate, demand,
       deadlines, rewards, stop, scale, raw
FROM trace_jobs
WHERE trace_id = $1 AND job >= $2 AND job < $2 + $3
ORDER BY job
