-- Which jobs hold a GPU and do nothing with it?
SELECT job_id, job, owner, gpu_id, round(100 * utilisation) AS percent, round(held) AS held_seconds, reported_at
FROM idle_gpus
