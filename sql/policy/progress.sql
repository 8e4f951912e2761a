-- How far jobs have come. $1: the jobs.
SELECT job_id, step, total_steps::DOUBLE AS total_steps, seconds_per_step FROM progress WHERE list_contains($1::BIGINT[], job_id)
