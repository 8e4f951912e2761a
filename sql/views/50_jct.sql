-- Jobs that have ended: how long they waited and ran, and what they used.
CREATE OR REPLACE VIEW jct AS
SELECT j.id, j.name, j.owner, j.pool, j.kind, j.model, j.outcome, j.gpus_min, j.submitted_at, j.first_start_at, j.finished_at,
       epoch(coalesce(j.first_start_at, j.finished_at) - j.submitted_at) AS queued,
       greatest(epoch(j.finished_at - j.submitted_at) - j.run_time, 0) AS waiting, j.run_time AS running,
       epoch(j.finished_at - j.submitted_at) AS jct, j.attained AS gpu_seconds,
       CASE WHEN j.run_time > 0 THEN epoch(j.finished_at - j.submitted_at) / j.run_time END AS slowdown,
       j.attempts, j.preemptions, j.failures
FROM jobs j
WHERE j.finished_at IS NOT NULL;
COMMENT ON VIEW jct IS 'Jobs that have ended: how long they waited and ran, and what they used';
COMMENT ON COLUMN jct.id IS 'Number of the job';
COMMENT ON COLUMN jct.name IS 'Name';
COMMENT ON COLUMN jct.owner IS 'User who submitted it';
COMMENT ON COLUMN jct.pool IS 'Pool';
COMMENT ON COLUMN jct.kind IS 'train, finetune, prompt or infer';
COMMENT ON COLUMN jct.model IS 'Model that was trained';
COMMENT ON COLUMN jct.outcome IS 'How it ended';
COMMENT ON COLUMN jct.gpus_min IS 'GPUs that it needed';
COMMENT ON COLUMN jct.submitted_at IS 'When it was accepted (UTC)';
COMMENT ON COLUMN jct.first_start_at IS 'When it first ran (UTC)';
COMMENT ON COLUMN jct.finished_at IS 'When it ended (UTC)';
COMMENT ON COLUMN jct.queued IS 'Seconds until it first ran';
COMMENT ON COLUMN jct.waiting IS 'Seconds in which it did not run';
COMMENT ON COLUMN jct.running IS 'Seconds run, over all attempts';
COMMENT ON COLUMN jct.jct IS 'Job completion time: seconds from submission to end';
COMMENT ON COLUMN jct.gpu_seconds IS 'GPU-time used (s)';
COMMENT ON COLUMN jct.slowdown IS 'Completion time over running time';
COMMENT ON COLUMN jct.attempts IS 'Leases granted';
COMMENT ON COLUMN jct.preemptions IS 'Times it was stopped for another job or at the end of a lease';
COMMENT ON COLUMN jct.failures IS 'Attempts that failed by its own fault';
