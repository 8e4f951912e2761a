-- Jobs that wait, in the order in which each pool serves them, with the reason and the estimated start.
CREATE OR REPLACE VIEW queue AS
SELECT n.position, n.id, n.name, n.owner, n.pool, n.state, n.priority, n.gpus_min, n.gpus_max, n.waited, n.est_start, n.code, n.reason,
       n.deadline, n.deadline_risk, n.held, n.array_id, n.array_index, n.preemptions, n.failures, n.submitted_at
FROM jobs_now n
WHERE n.state IN ('submitted', 'pending')
ORDER BY n.pool, n.position NULLS LAST, n.priority DESC, n.id;
COMMENT ON VIEW queue IS 'Jobs that wait, in the order in which each pool serves them, with the reason and the estimated start';
COMMENT ON COLUMN queue.position IS 'Place in the order of service of the pool, from 1; NULL: not in line (held, waits for other jobs, backs off)';
COMMENT ON COLUMN queue.id IS 'Number of the job';
COMMENT ON COLUMN queue.name IS 'Name';
COMMENT ON COLUMN queue.owner IS 'User who submitted it';
COMMENT ON COLUMN queue.pool IS 'Pool';
COMMENT ON COLUMN queue.state IS 'submitted (not in line yet) or pending';
COMMENT ON COLUMN queue.priority IS 'Larger is more urgent';
COMMENT ON COLUMN queue.gpus_min IS 'GPUs that it needs';
COMMENT ON COLUMN queue.gpus_max IS 'GPUs that it can use at most';
COMMENT ON COLUMN queue.waited IS 'Seconds since submission in which it did not run';
COMMENT ON COLUMN queue.est_start IS 'When it should start (UTC), NULL: not known';
COMMENT ON COLUMN queue.code IS 'Why it waits, in a word';
COMMENT ON COLUMN queue.reason IS 'Why it waits, in words';
COMMENT ON COLUMN queue.deadline IS 'Last deadline (UTC)';
COMMENT ON COLUMN queue.deadline_risk IS 'missed, safe, at risk or unknown; NULL: no deadline';
COMMENT ON COLUMN queue.held IS 'Held by a person';
COMMENT ON COLUMN queue.array_id IS 'Array job: id of its first task';
COMMENT ON COLUMN queue.array_index IS 'Position in the array';
COMMENT ON COLUMN queue.preemptions IS 'Times it was stopped for another job or at the end of a lease';
COMMENT ON COLUMN queue.failures IS 'Attempts that failed by its own fault';
COMMENT ON COLUMN queue.submitted_at IS 'When it was accepted (UTC)';
