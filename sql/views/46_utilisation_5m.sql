-- Use of each GPU in 5-minute steps over the last 7 days: share under lease, and share measured busy.
CREATE OR REPLACE VIEW utilisation_5m AS
WITH clock AS (SELECT make_timestamp(epoch_us(now())) AS moment, moment - INTERVAL 7 DAY AS horizon),
leased AS (
    SELECT s.bucket, t.gpu_id, any_value(t.node) AS node,
           sum(epoch(least(t.until, s.bucket + INTERVAL 5 MINUTE) - greatest(t.since, s.bucket)))
               / epoch(least(s.bucket + INTERVAL 5 MINUTE, any_value(c.moment)) - s.bucket) AS share
    FROM clock c
    JOIN gpu_leased t ON t.until > c.horizon
    CROSS JOIN generate_series(time_bucket(INTERVAL 5 MINUTE, greatest(t.since, c.horizon)), t.until, INTERVAL 5 MINUTE) s(bucket)
    WHERE t.until > s.bucket
    GROUP BY s.bucket, t.gpu_id
),
sampled AS (  -- of a GPU that is shared each lease shows the whole; of a slot each lease is measured
    SELECT t.ts, t.gpu_id, any_value(t.node_id) AS node,
           CASE WHEN any_value(g.kind) = 'cpu' THEN least(sum(t.utilisation), 1) ELSE max(t.utilisation) END AS utilisation,
           CASE WHEN any_value(g.kind) = 'cpu' THEN CAST(sum(t.memory_used) AS BIGINT) ELSE max(t.memory_used) END AS memory_used,
           max(t.power) AS power
    FROM telemetry t LEFT JOIN gpus g ON g.id = t.gpu_id
    WHERE t.ts > make_timestamp(epoch_us(now())) - INTERVAL 7 DAY
    GROUP BY t.ts, t.gpu_id
),
measured AS (
    SELECT time_bucket(INTERVAL 5 MINUTE, ts) AS bucket, gpu_id, any_value(node) AS node, avg(utilisation) AS utilisation,
           max(memory_used) AS memory_used, avg(power) AS power
    FROM sampled
    GROUP BY 1, gpu_id
)
SELECT bucket, gpu_id, coalesce(m.node, l.node) AS node, coalesce(l.share, 0) AS leased, m.utilisation, m.memory_used, m.power
FROM measured m FULL JOIN leased l USING (bucket, gpu_id)
ORDER BY bucket, gpu_id;
COMMENT ON VIEW utilisation_5m IS 'Use of each GPU in 5-minute steps over the last 7 days: share under lease, and share measured busy';
COMMENT ON COLUMN utilisation_5m.bucket IS 'Beginning of the 5 minutes (UTC)';
COMMENT ON COLUMN utilisation_5m.gpu_id IS 'GPU';
COMMENT ON COLUMN utilisation_5m.node IS 'Runner';
COMMENT ON COLUMN utilisation_5m.leased IS 'Share of the time under lease, 0 to 1';
COMMENT ON COLUMN utilisation_5m.utilisation IS 'Mean busy share measured, 0 to 1; NULL: no sample';
COMMENT ON COLUMN utilisation_5m.memory_used IS 'Largest memory in use (bytes)';
COMMENT ON COLUMN utilisation_5m.power IS 'Mean power (W)';
