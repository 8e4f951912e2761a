-- Attempts that were told to stop, newest first: why, for whom, and how long they took to leave.
CREATE OR REPLACE VIEW preemptions AS
SELECT l.stop_at, l.job_id, j.name, j.owner, j.pool, l.id AS lease_id, l.stop_reason, l.stop_for, v.name AS stop_for_name, l.policy,
       l.gpu_count AS gpus, epoch(l.stop_at - coalesce(l.started_at, l.granted_at)) AS ran,
       greatest(epoch(coalesce(l.ended_at, make_timestamp(epoch_us(now()))) - l.stop_at), 0) AS leaving, l.ended_at, l.outcome
FROM leases l
JOIN jobs j ON j.id = l.job_id
LEFT JOIN jobs v ON v.id = l.stop_for
WHERE l.stop_at IS NOT NULL
ORDER BY l.stop_at DESC;
COMMENT ON VIEW preemptions IS 'Attempts that were told to stop, newest first: why, for whom, and how long they took to leave';
COMMENT ON COLUMN preemptions.stop_at IS 'When it was told to stop (UTC)';
COMMENT ON COLUMN preemptions.job_id IS 'Job';
COMMENT ON COLUMN preemptions.name IS 'Name';
COMMENT ON COLUMN preemptions.owner IS 'User who submitted it';
COMMENT ON COLUMN preemptions.pool IS 'Pool';
COMMENT ON COLUMN preemptions.lease_id IS 'Lease';
COMMENT ON COLUMN preemptions.stop_reason IS 'preempted, expired, cancelled, held, timeout, hang or drain';
COMMENT ON COLUMN preemptions.stop_for IS 'Job that it had to leave for';
COMMENT ON COLUMN preemptions.stop_for_name IS 'Name of that job';
COMMENT ON COLUMN preemptions.policy IS 'Policy that had granted the lease';
COMMENT ON COLUMN preemptions.gpus IS 'GPUs held';
COMMENT ON COLUMN preemptions.ran IS 'Seconds run before it was told';
COMMENT ON COLUMN preemptions.leaving IS 'Seconds it took to leave, until now if it has not';
COMMENT ON COLUMN preemptions.ended_at IS 'When it had left (UTC)';
COMMENT ON COLUMN preemptions.outcome IS 'How the attempt ended';
