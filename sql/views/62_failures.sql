-- Attempts that did not end well, newest first, with what happened and where the log is.
CREATE OR REPLACE VIEW failures AS
SELECT l.ended_at, l.job_id, j.name, j.owner, j.pool, l.id AS lease_id, l.attempt, l.outcome, l.exit_code, l.message,
       epoch(l.ended_at - coalesce(l.started_at, l.granted_at)) AS ran, j.state, j.failures,
       any_value(w.node_id) AS node, any_value(w.run_dir) AS run_dir
FROM leases l
JOIN jobs j ON j.id = l.job_id
LEFT JOIN workers w ON w.lease_id = l.id
WHERE l.state = 'ended' AND l.outcome NOT IN ('completed', 'preempted', 'cancelled', 'profiled')
GROUP BY l.ended_at, l.job_id, j.name, j.owner, j.pool, l.id, l.attempt, l.outcome, l.exit_code, l.message, l.started_at, l.granted_at,
         j.state, j.failures
ORDER BY l.ended_at DESC;
COMMENT ON VIEW failures IS 'Attempts that did not end well, newest first, with what happened and where the log is';
COMMENT ON COLUMN failures.ended_at IS 'When the attempt ended (UTC)';
COMMENT ON COLUMN failures.job_id IS 'Job';
COMMENT ON COLUMN failures.name IS 'Name';
COMMENT ON COLUMN failures.owner IS 'User who submitted it';
COMMENT ON COLUMN failures.pool IS 'Pool';
COMMENT ON COLUMN failures.lease_id IS 'Lease';
COMMENT ON COLUMN failures.attempt IS 'Counts the leases of the job, from 1';
COMMENT ON COLUMN failures.outcome IS 'failed, oom, hang, timeout, lost or start-failed';
COMMENT ON COLUMN failures.exit_code IS 'Exit code, negative: signal';
COMMENT ON COLUMN failures.message IS 'Cause and remedy';
COMMENT ON COLUMN failures.ran IS 'Seconds from its start to its end';
COMMENT ON COLUMN failures.state IS 'Present state of the job: whether it is tried again';
COMMENT ON COLUMN failures.failures IS 'Attempts of the job that failed by its own fault';
COMMENT ON COLUMN failures.node IS 'Runner (one of them, of a gang over several)';
COMMENT ON COLUMN failures.run_dir IS 'Directory of its log on that runner';
