-- Cost of each job: GPU-time that it held and files that it keeps, at the prices of the time (config.toml, [prices]).
CREATE OR REPLACE VIEW costs AS
WITH lists AS (  -- each list of prices with its begin and end; the first one also holds before its begin
    SELECT ts, CASE WHEN row_number() OVER (ORDER BY ts) = 1 THEN TIMESTAMP '-infinity' ELSE ts END AS since,
           coalesce(lead(ts) OVER (ORDER BY ts), TIMESTAMP 'infinity') AS until
    FROM (SELECT DISTINCT ts FROM prices)
),
held AS (  -- a lease has the prices of its GPUs at the time when it was granted
    SELECT t.job_id, sum(t.gpu_seconds) / 3600 AS gpu_hours, sum(t.gpu_seconds / 3600 * coalesce(own.price, other.price, 1)) AS gpu_cost
    FROM gpu_time t
    LEFT JOIN gpus g ON g.id = t.gpu_id
    LEFT JOIN lists l ON t.since >= l.since AND t.since < l.until
    LEFT JOIN prices own ON own.ts = l.ts AND own.what = 'gpu' AND own.gpu_name = g.name AND g.name <> ''
    LEFT JOIN prices other ON other.ts = l.ts AND other.what = 'gpu' AND other.gpu_name = ''
    GROUP BY t.job_id
),
kept AS (
    SELECT job_id, bytes, since, coalesce(lead(since) OVER later, make_timestamp(epoch_us(now()))) AS until, lead(since) OVER later IS NULL AS newest
    FROM job_files
    WINDOW later AS (PARTITION BY place, job_id ORDER BY since)
),
stored AS (
    SELECT job_id, sum(bytes) FILTER (newest) AS bytes FROM kept GROUP BY job_id
),
stored_for AS (  -- at the price of each time, however long it is kept unchanged
    SELECT k.job_id, sum(k.bytes / 1073741824 * h.hours) AS gib_hours, sum(k.bytes / 1073741824 * h.hours * coalesce(p.price, 0)) AS cost
    FROM kept k
    JOIN lists l ON k.since < l.until AND k.until > l.since
    CROSS JOIN LATERAL (SELECT epoch(least(k.until, l.until) - greatest(k.since, l.since)) / 3600 AS hours) h
    LEFT JOIN prices p ON p.ts = l.ts AND p.what = 'storage'
    GROUP BY k.job_id
)
SELECT j.id AS job_id, j.name, j.owner, j.pool, j.state, coalesce(h.gpu_hours, 0) AS gpu_hours, coalesce(h.gpu_cost, 0) AS gpu_cost,
       CAST(coalesce(s.bytes, 0) AS BIGINT) AS stored_bytes, coalesce(f.gib_hours, 0) AS stored_gib_hours, coalesce(f.cost, 0) AS storage_cost,
       coalesce(h.gpu_cost, 0) + coalesce(f.cost, 0) AS cost
FROM jobs j
LEFT JOIN held h ON h.job_id = j.id
LEFT JOIN stored s ON s.job_id = j.id
LEFT JOIN stored_for f ON f.job_id = j.id;
COMMENT ON VIEW costs IS 'Cost of each job: GPU-time that it held and files that it keeps, at the prices of the time (config.toml, [prices])';
COMMENT ON COLUMN costs.job_id IS 'Job';
COMMENT ON COLUMN costs.name IS 'Its name';
COMMENT ON COLUMN costs.owner IS 'User who submitted it';
COMMENT ON COLUMN costs.pool IS 'Pool';
COMMENT ON COLUMN costs.state IS 'State';
COMMENT ON COLUMN costs.gpu_hours IS 'Hours of GPUs that it held; the time of a shared GPU is divided among those who share it';
COMMENT ON COLUMN costs.gpu_cost IS 'Their price; of a lease, as it was when that was granted';
COMMENT ON COLUMN costs.stored_bytes IS 'Disk space that its directories take now (bytes)';
COMMENT ON COLUMN costs.stored_gib_hours IS 'GiB times the hours for which they were kept';
COMMENT ON COLUMN costs.storage_cost IS 'Their price';
COMMENT ON COLUMN costs.cost IS 'Both prices';
