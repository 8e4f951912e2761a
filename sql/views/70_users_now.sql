-- Every user: what runs, what waits, and the GPU-time of the last 7 days.
CREATE OR REPLACE VIEW users_now AS
WITH used AS (
    SELECT t.owner, sum(t.gpu_seconds * epoch(t.until - greatest(t.since, make_timestamp(epoch_us(now())) - INTERVAL 7 DAY)) / greatest(t.seconds, 1e-6))
               AS gpu_seconds
    FROM gpu_time t
    WHERE t.until > make_timestamp(epoch_us(now())) - INTERVAL 7 DAY
    GROUP BY t.owner
),
held AS (
    SELECT j.owner, count(DISTINCT s.gpu_id) AS gpus FROM live_shares s JOIN jobs j ON j.id = s.job_id GROUP BY j.owner
)
SELECT j.owner, count(*) FILTER (j.lease_id IS NOT NULL) AS active, count(*) FILTER (j.state IN ('submitted', 'pending')) AS waiting,
       coalesce(any_value(h.gpus), 0) AS gpus, coalesce(any_value(u.gpu_seconds), 0) AS gpu_seconds_7d,
       count(*) FILTER (j.state = 'completed') AS completed, count(*) FILTER (j.state = 'failed') AS failed
FROM jobs j
LEFT JOIN held h ON h.owner = j.owner
LEFT JOIN used u ON u.owner = j.owner
GROUP BY j.owner
ORDER BY gpus DESC, j.owner;
COMMENT ON VIEW users_now IS 'Every user: what runs, what waits, and the GPU-time of the last 7 days';
COMMENT ON COLUMN users_now.owner IS 'User';
COMMENT ON COLUMN users_now.active IS 'Jobs that hold GPUs';
COMMENT ON COLUMN users_now.waiting IS 'Jobs that wait';
COMMENT ON COLUMN users_now.gpus IS 'GPUs held now';
COMMENT ON COLUMN users_now.gpu_seconds_7d IS 'GPU-time of the last 7 days (s); time on shared GPUs is divided among those who share them';
COMMENT ON COLUMN users_now.completed IS 'Jobs completed, ever';
COMMENT ON COLUMN users_now.failed IS 'Jobs failed, ever';
