-- Jobs not ended whose estimated end lies behind their last deadline, with words.
WITH estimates AS (
    SELECT j.id, j.deadline,
           coalesce(w.est_start, now()::TIMESTAMP) AS start,
           coalesce(
               greatest(coalesce(p.total_steps, j.total_steps) - coalesce(p.step, 0), 0) * coalesce(p.seconds_per_step, k.seconds_per_step),
               greatest(coalesce(j.est_duration, k.duration) - j.run_time - coalesce(epoch(now()::TIMESTAMP - l.started_at), 0), 0),
               0) AS remaining
    FROM jobs j
    LEFT JOIN progress p ON p.job_id = j.id
    LEFT JOIN waiting w ON w.job_id = j.id
    LEFT JOIN leases l ON l.id = j.lease_id
    LEFT JOIN (SELECT model, gpu_count, min(seconds_per_step) AS seconds_per_step, avg(duration) AS duration FROM profiles GROUP BY ALL) k
        ON k.model = j.model AND k.gpu_count = j.gpus_min
    WHERE j.deadline IS NOT NULL AND j.finished_at IS NULL
)
SELECT id,
       'expected to end ' || CAST(ceil(epoch(start + to_seconds(remaining) - deadline)) AS BIGINT) || ' s after its deadline of '
       || strftime(deadline, '%Y-%m-%d %H:%M:%S') || ' UTC: raise its priority, or give it GPUs'
FROM estimates
WHERE start + to_seconds(remaining) > deadline
ORDER BY id
