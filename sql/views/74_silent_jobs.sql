-- Running jobs that have not reported for longer than ten of their steps and a minute.
CREATE OR REPLACE VIEW silent_jobs AS
SELECT n.id, n.name, n.owner, n.pool, n.nodes, n.step, n.seconds_per_step,
       epoch(make_timestamp(epoch_us(now())) - coalesce(n.reported_at, n.state_since)) AS silent, n.reported_at
FROM jobs_now n
WHERE n.state = 'running'
  AND epoch(make_timestamp(epoch_us(now())) - coalesce(n.reported_at, n.state_since)) > 60 + 10 * coalesce(n.seconds_per_step, 0)
ORDER BY silent DESC;
COMMENT ON VIEW silent_jobs IS 'Running jobs that have not reported for longer than ten of their steps and a minute';
COMMENT ON COLUMN silent_jobs.id IS 'Number of the job';
COMMENT ON COLUMN silent_jobs.name IS 'Name';
COMMENT ON COLUMN silent_jobs.owner IS 'User who submitted it';
COMMENT ON COLUMN silent_jobs.pool IS 'Pool';
COMMENT ON COLUMN silent_jobs.nodes IS 'Runners on which it runs';
COMMENT ON COLUMN silent_jobs.step IS 'Last step reported';
COMMENT ON COLUMN silent_jobs.seconds_per_step IS 'Seconds a step';
COMMENT ON COLUMN silent_jobs.silent IS 'Seconds since its last report, or since it runs';
COMMENT ON COLUMN silent_jobs.reported_at IS 'When it last reported (UTC), NULL: never';
