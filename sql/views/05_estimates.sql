-- Work that jobs have left now: `work` seen from this moment. sql/policy/jobs.sql does the same from the moment of a View.
CREATE OR REPLACE VIEW estimates AS
WITH timed AS (  -- a runner's clock may be ahead of the daemon's, but no run time is negative
    SELECT j.id, j.run_time + coalesce(greatest(epoch(make_timestamp(epoch_us(now())) - l.started_at), 0), 0) AS ran
    FROM jobs j LEFT JOIN leases l ON l.id = j.lease_id AND NOT l.profile
    WHERE j.finished_at IS NULL
),
guesses AS (  -- not greatest(): it takes NULL for the smallest value, and unknown would become nothing left
    SELECT t.id, t.ran, coalesce(w.ahead, w.duration - t.ran) AS remaining, w.gpu_memory
    FROM timed t JOIN work w ON w.job_id = t.id
)
SELECT id AS job_id, ran, CASE WHEN remaining < 0 THEN 0 ELSE remaining END AS remaining, gpu_memory
FROM guesses;

COMMENT ON VIEW estimates IS 'Work left of jobs that have not ended: by their own pace, else by what earlier jobs of the model took, else by what the submitter expects';
COMMENT ON COLUMN estimates.job_id IS 'Job';
COMMENT ON COLUMN estimates.ran IS 'Seconds run so far, over all leases';
COMMENT ON COLUMN estimates.remaining IS 'Estimated seconds of work left on the GPUs it asks for, NULL: not known';
COMMENT ON COLUMN estimates.gpu_memory IS 'Memory needed on each GPU (bytes), as asked for or as measured, NULL: not known';
