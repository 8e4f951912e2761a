-- What is known of the work that jobs have left, free of the clock: by steps and pace, else as a duration of the whole job.
CREATE OR REPLACE VIEW work AS
WITH known AS (
    SELECT model, gpu_count, min(seconds_per_step) AS pace, avg(duration) AS duration, max(peak_memory) AS memory
    FROM profiles
    GROUP BY model, gpu_count
)
SELECT j.id AS job_id,
       (coalesce(p.total_steps, j.total_steps) - coalesce(p.step, 0)) * coalesce(p.seconds_per_step, k.pace) AS ahead,
       coalesce(j.est_duration, k.duration) AS duration,
       CASE WHEN j.gpu_memory > 0 THEN j.gpu_memory ELSE k.memory END AS gpu_memory
FROM jobs j
LEFT JOIN progress p ON p.job_id = j.id
LEFT JOIN known k ON k.model = j.model AND k.gpu_count = j.gpus_min
WHERE j.finished_at IS NULL;

COMMENT ON VIEW work IS 'What is known of the work of jobs that have not ended, free of the clock';
COMMENT ON COLUMN work.job_id IS 'Job';
COMMENT ON COLUMN work.ahead IS 'Seconds left by its steps and their pace, its own or that of earlier jobs of the model, NULL: not known';
COMMENT ON COLUMN work.duration IS 'Seconds that the whole job takes, as the submitter or earlier jobs of the model say, NULL: not known';
COMMENT ON COLUMN work.gpu_memory IS 'Memory needed on each GPU (bytes), as asked for or as measured, NULL: not known';
