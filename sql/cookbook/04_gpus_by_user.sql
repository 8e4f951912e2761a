-- Who holds the GPUs, and who has used most this week?
SELECT owner, active, waiting, gpus, round(gpu_seconds_7d / 3600, 1) AS gpu_hours_7d
FROM users_now
ORDER BY gpus DESC, gpu_hours_7d DESC
