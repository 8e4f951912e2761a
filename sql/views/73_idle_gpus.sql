-- GPUs that a job holds and hardly uses: mean measured use below 5 % over the last 10 minutes.
CREATE OR REPLACE VIEW idle_gpus AS
SELECT t.gpu_id, t.node_id AS node, l.job_id, j.name AS job, j.owner, avg(t.utilisation) AS utilisation, max(t.power) AS power,
       max(t.memory_used) AS memory_used, count(*) AS samples, p.step, p.updated_at AS reported_at,
       epoch(make_timestamp(epoch_us(now())) - l.granted_at) AS held
FROM telemetry t
JOIN leases l ON l.id = t.lease_id
JOIN jobs j ON j.id = l.job_id
LEFT JOIN progress p ON p.job_id = l.job_id
WHERE t.ts > make_timestamp(epoch_us(now())) - INTERVAL 10 MINUTE AND l.state = 'running'
GROUP BY t.gpu_id, t.node_id, l.job_id, j.name, j.owner, p.step, p.updated_at, l.granted_at
HAVING avg(t.utilisation) < 0.05 AND count(*) >= 3
ORDER BY held DESC;
COMMENT ON VIEW idle_gpus IS 'GPUs that a job holds and hardly uses: mean measured use below 5 % over the last 10 minutes';
COMMENT ON COLUMN idle_gpus.gpu_id IS 'GPU';
COMMENT ON COLUMN idle_gpus.node IS 'Runner';
COMMENT ON COLUMN idle_gpus.job_id IS 'Job that holds it';
COMMENT ON COLUMN idle_gpus.job IS 'Name of the job';
COMMENT ON COLUMN idle_gpus.owner IS 'User of the job';
COMMENT ON COLUMN idle_gpus.utilisation IS 'Mean busy share, 0 to 1';
COMMENT ON COLUMN idle_gpus.power IS 'Largest power (W)';
COMMENT ON COLUMN idle_gpus.memory_used IS 'Largest memory in use (bytes)';
COMMENT ON COLUMN idle_gpus.samples IS 'Samples in that time';
COMMENT ON COLUMN idle_gpus.step IS 'Last step that the job reported';
COMMENT ON COLUMN idle_gpus.reported_at IS 'When it last reported (UTC)';
COMMENT ON COLUMN idle_gpus.held IS 'Seconds since the lease was granted';
