-- Steps of the newest checkpoints of jobs. $1: the jobs.
SELECT job_id, checkpoint_step FROM progress WHERE list_contains($1::BIGINT[], job_id) AND checkpoint_step IS NOT NULL
