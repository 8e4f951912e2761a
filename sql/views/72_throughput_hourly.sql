-- Jobs submitted, started and ended in each hour.
CREATE OR REPLACE VIEW throughput_hourly AS
WITH moments AS (
    SELECT date_trunc('hour', j.submitted_at) AS hour, 1 AS submitted, 0 AS started, 0 AS completed, 0 AS failed FROM jobs j
    UNION ALL
    SELECT date_trunc('hour', j.first_start_at), 0, 1, 0, 0 FROM jobs j WHERE j.first_start_at IS NOT NULL
    UNION ALL
    SELECT date_trunc('hour', j.finished_at), 0, 0, CAST(j.state = 'completed' AS INTEGER), CAST(j.state = 'failed' AS INTEGER)
    FROM jobs j
    WHERE j.finished_at IS NOT NULL
)
SELECT m.hour, sum(m.submitted) AS submitted, sum(m.started) AS started, sum(m.completed) AS completed, sum(m.failed) AS failed
FROM moments m
GROUP BY m.hour
ORDER BY m.hour;
COMMENT ON VIEW throughput_hourly IS 'Jobs submitted, started and ended in each hour';
COMMENT ON COLUMN throughput_hourly.hour IS 'Beginning of the hour (UTC)';
COMMENT ON COLUMN throughput_hourly.submitted IS 'Jobs submitted';
COMMENT ON COLUMN throughput_hourly.started IS 'Jobs that first ran';
COMMENT ON COLUMN throughput_hourly.completed IS 'Jobs completed';
COMMENT ON COLUMN throughput_hourly.failed IS 'Jobs failed';
