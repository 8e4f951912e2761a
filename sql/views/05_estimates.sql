-- How much work jobs have left: the one place where it is estimated.
CREATE OR REPLACE VIEW estimates AS
WITH known AS (
    SELECT model, gpu_count, min(seconds_per_step) AS pace, avg(duration) AS duration, max(peak_memory) AS memory
    FROM profiles
    GROUP BY model, gpu_count
),
facts AS (
    SELECT j.id, j.run_time + coalesce(epoch(make_timestamp(epoch_us(now())) - l.started_at), 0) AS ran,
           coalesce(p.total_steps, j.total_steps) - coalesce(p.step, 0) AS steps_left,
           coalesce(p.seconds_per_step, k.pace) AS pace,
           coalesce(j.est_duration, k.duration) AS duration,
           CASE WHEN j.gpu_memory > 0 THEN j.gpu_memory ELSE k.memory END AS gpu_memory
    FROM jobs j
    LEFT JOIN progress p ON p.job_id = j.id
    LEFT JOIN leases l ON l.id = j.lease_id
    LEFT JOIN known k ON k.model = j.model AND k.gpu_count = j.gpus_min
    WHERE j.finished_at IS NULL
),
guesses AS (  -- not greatest(): it takes NULL for the smallest value, and unknown would become nothing left
    SELECT id, ran, gpu_memory, coalesce(steps_left * pace, duration - ran) AS remaining FROM facts
)
SELECT id AS job_id, ran, CASE WHEN remaining < 0 THEN 0 ELSE remaining END AS remaining, gpu_memory
FROM guesses;

COMMENT ON VIEW estimates IS 'Work left of jobs that have not ended: by their own pace, else by what earlier jobs of the model took, else by what the submitter expects';
COMMENT ON COLUMN estimates.job_id IS 'Job';
COMMENT ON COLUMN estimates.ran IS 'Seconds run so far, over all leases';
COMMENT ON COLUMN estimates.remaining IS 'Estimated seconds of work left on the GPUs it asks for, NULL: not known';
COMMENT ON COLUMN estimates.gpu_memory IS 'Memory needed on each GPU (bytes), as asked for or as measured, NULL: not known';
