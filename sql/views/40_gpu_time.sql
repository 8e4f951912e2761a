-- Times at which jobs held GPUs: one row a lease and GPU, for Gantt charts and accounting.
CREATE OR REPLACE VIEW gpu_time AS
WITH shared AS (  -- the time of a shared GPU is divided among all jobs that have it at a moment
    SELECT h.gpu_id, l.id, l.granted_at AS since, coalesce(l.ended_at, make_timestamp(epoch_us(now()))) AS until
    FROM leases l JOIN lease_gpus h ON h.lease_id = l.id
    WHERE l.share <> 'exclusive'
),
moments AS (SELECT gpu_id, since AS moment FROM shared UNION SELECT gpu_id, until FROM shared),
pieces AS (SELECT gpu_id, moment, lead(moment) OVER (PARTITION BY gpu_id ORDER BY moment) AS until FROM moments),
divided AS (
    SELECT s.id, s.gpu_id, epoch(p.until - p.moment) / count(*) OVER (PARTITION BY p.gpu_id, p.moment) AS seconds
    FROM pieces p JOIN shared s ON s.gpu_id = p.gpu_id AND s.since <= p.moment AND s.until >= p.until
),
parts AS (SELECT id, gpu_id, sum(seconds) AS seconds FROM divided GROUP BY id, gpu_id)
SELECT g.gpu_id, g.node_id AS node, u.idx, l.id AS lease_id, l.job_id, j.name AS job, j.owner, j.pool, l.attempt,
       l.granted_at AS since, coalesce(l.ended_at, make_timestamp(epoch_us(now()))) AS until,
       epoch(coalesce(l.ended_at, make_timestamp(epoch_us(now()))) - l.granted_at) AS seconds,
       coalesce(d.seconds, epoch(coalesce(l.ended_at, make_timestamp(epoch_us(now()))) - l.granted_at)) AS gpu_seconds,
       l.state, l.outcome, l.stop_reason, l.policy
FROM leases l
JOIN lease_gpus g ON g.lease_id = l.id
JOIN jobs j ON j.id = l.job_id
LEFT JOIN gpus u ON u.id = g.gpu_id
LEFT JOIN parts d ON d.id = l.id AND d.gpu_id = g.gpu_id;
COMMENT ON VIEW gpu_time IS 'Times at which jobs held GPUs: one row a lease and GPU, for Gantt charts and accounting';
COMMENT ON COLUMN gpu_time.gpu_id IS 'GPU';
COMMENT ON COLUMN gpu_time.node IS 'Runner';
COMMENT ON COLUMN gpu_time.idx IS 'Position on its node, NULL: no longer offered';
COMMENT ON COLUMN gpu_time.lease_id IS 'Lease';
COMMENT ON COLUMN gpu_time.job_id IS 'Job';
COMMENT ON COLUMN gpu_time.job IS 'Name of the job';
COMMENT ON COLUMN gpu_time.owner IS 'User of the job';
COMMENT ON COLUMN gpu_time.pool IS 'Pool of the job';
COMMENT ON COLUMN gpu_time.attempt IS 'Counts the leases of the job, from 1';
COMMENT ON COLUMN gpu_time.since IS 'When the lease was granted (UTC)';
COMMENT ON COLUMN gpu_time.until IS 'When it ended, or now (UTC)';
COMMENT ON COLUMN gpu_time.seconds IS 'Length';
COMMENT ON COLUMN gpu_time.gpu_seconds IS 'GPU-time (s): those seconds, divided among all who share the GPU at a moment';
COMMENT ON COLUMN gpu_time.state IS 'State of the lease';
COMMENT ON COLUMN gpu_time.outcome IS 'How it ended';
COMMENT ON COLUMN gpu_time.stop_reason IS 'Why it was told to stop';
COMMENT ON COLUMN gpu_time.policy IS 'Policy that granted it';
