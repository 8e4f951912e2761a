-- Progress of jobs, as far as there is any.
SELECT job_id, step, total_steps, loss, metric, seconds_per_step, checkpoint_step, peak_memory, epoch(updated_at) AS updated_at
FROM progress
WHERE list_contains($1::BIGINT[], job_id)
