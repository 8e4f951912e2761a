-- Estimated seconds of work left of a job on the GPUs it asks for, NULL: not known.
SELECT coalesce(
    greatest(coalesce(p.total_steps, j.total_steps) - coalesce(p.step, 0), 0) * coalesce(p.seconds_per_step, k.seconds_per_step),
    greatest(coalesce(j.est_duration, k.duration) - j.run_time, 0))
FROM jobs j
LEFT JOIN progress p ON p.job_id = j.id
LEFT JOIN profiles k ON k.model = j.model AND k.gpu_count = j.gpus_min
WHERE j.id = $1
LIMIT 1
