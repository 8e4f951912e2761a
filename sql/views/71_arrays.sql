-- Every array job: its tasks by state.
CREATE OR REPLACE VIEW arrays AS
SELECT j.array_id, any_value(j.name ORDER BY j.id) AS name, any_value(j.owner) AS owner, any_value(j.pool) AS pool, count(*) AS tasks,
       count(*) FILTER (j.state IN ('submitted', 'pending')) AS waiting, count(*) FILTER (j.lease_id IS NOT NULL) AS active,
       count(*) FILTER (j.state = 'completed') AS completed, count(*) FILTER (j.state = 'failed') AS failed,
       count(*) FILTER (j.state = 'cancelled') AS cancelled, any_value(j.array_cap) AS cap, min(j.submitted_at) AS submitted_at,
       max(j.finished_at) AS last_finished_at
FROM jobs j
WHERE j.array_id IS NOT NULL
GROUP BY j.array_id
ORDER BY j.array_id;
COMMENT ON VIEW arrays IS 'Every array job: its tasks by state';
COMMENT ON COLUMN arrays.array_id IS 'Id of the first task';
COMMENT ON COLUMN arrays.name IS 'Name of the first task';
COMMENT ON COLUMN arrays.owner IS 'User who submitted it';
COMMENT ON COLUMN arrays.pool IS 'Pool';
COMMENT ON COLUMN arrays.tasks IS 'Tasks in all';
COMMENT ON COLUMN arrays.waiting IS 'Tasks that wait';
COMMENT ON COLUMN arrays.active IS 'Tasks that hold GPUs';
COMMENT ON COLUMN arrays.completed IS 'Tasks completed';
COMMENT ON COLUMN arrays.failed IS 'Tasks failed';
COMMENT ON COLUMN arrays.cancelled IS 'Tasks cancelled';
COMMENT ON COLUMN arrays.cap IS 'Tasks that may run at once, NULL: no cap';
COMMENT ON COLUMN arrays.submitted_at IS 'When it was accepted (UTC)';
COMMENT ON COLUMN arrays.last_finished_at IS 'When a task last ended (UTC)';
