-- Who held which GPU when: one row a lease and GPU, for Gantt charts and accounting.
CREATE OR REPLACE VIEW gpu_time AS
SELECT g.gpu_id, g.node_id AS node, u.idx, l.id AS lease_id, l.job_id, j.name AS job, j.owner, j.pool, l.attempt,
       l.granted_at AS since, coalesce(l.ended_at, make_timestamp(epoch_us(now()))) AS until,
       epoch(coalesce(l.ended_at, make_timestamp(epoch_us(now()))) - l.granted_at) AS seconds,
       l.state, l.outcome, l.stop_reason, l.policy
FROM leases l
JOIN lease_gpus g ON g.lease_id = l.id
JOIN jobs j ON j.id = l.job_id
LEFT JOIN gpus u ON u.id = g.gpu_id;
COMMENT ON VIEW gpu_time IS 'Who held which GPU when: one row a lease and GPU, for Gantt charts and accounting';
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
COMMENT ON COLUMN gpu_time.state IS 'State of the lease';
COMMENT ON COLUMN gpu_time.outcome IS 'How it ended';
COMMENT ON COLUMN gpu_time.stop_reason IS 'Why it was told to stop';
COMMENT ON COLUMN gpu_time.policy IS 'Policy that granted it';
