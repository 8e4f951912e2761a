-- Silent runners that may have jobs: all knowledge of these is as old as the last report.
-- A draining runner keeps that state however silent it is, so for it the time of the last report decides.
CREATE OR REPLACE VIEW silent_runners AS
SELECT id, host, state, epoch(make_timestamp(epoch_us(now())) - last_seen) AS silent, last_seen
FROM nodes
WHERE state = 'suspect' OR (state = 'draining' AND last_seen < make_timestamp(epoch_us(now())) - INTERVAL 1 MINUTE);
COMMENT ON VIEW silent_runners IS 'Runners that may have jobs and are not heard: what is known of these is as old as the last word';
COMMENT ON COLUMN silent_runners.id IS 'Name of the runner';
COMMENT ON COLUMN silent_runners.host IS 'Host name';
COMMENT ON COLUMN silent_runners.state IS 'suspect or draining';
COMMENT ON COLUMN silent_runners.silent IS 'Seconds since it was last heard';
COMMENT ON COLUMN silent_runners.last_seen IS 'When it was last heard (UTC)';
