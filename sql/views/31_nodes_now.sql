-- Every runner as it is now, with its GPUs.
CREATE OR REPLACE VIEW nodes_now AS
SELECT n.id, n.host, n.state, n.version, count(g.id) AS gpus, count(g.id) FILTER (g.state = 'busy') AS busy,
       count(g.id) FILTER (g.state = 'free') AS free, avg(g.utilisation) AS utilisation,
       epoch(make_timestamp(epoch_us(now())) - n.last_seen) AS silent, n.last_seen, n.joined_at
FROM nodes n LEFT JOIN gpus_now g ON g.node = n.id
GROUP BY n.id, n.host, n.state, n.version, n.last_seen, n.joined_at
ORDER BY n.id;
COMMENT ON VIEW nodes_now IS 'Every runner as it is now, with its GPUs';
COMMENT ON COLUMN nodes_now.id IS 'Name of the runner';
COMMENT ON COLUMN nodes_now.host IS 'Host name';
COMMENT ON COLUMN nodes_now.state IS 'up, suspect (silent), draining, drained, stopped or gone';
COMMENT ON COLUMN nodes_now.version IS 'Version of the agent';
COMMENT ON COLUMN nodes_now.gpus IS 'GPUs and slots it offers';
COMMENT ON COLUMN nodes_now.busy IS 'Of these, held by a lease';
COMMENT ON COLUMN nodes_now.free IS 'Of these, ready for a job';
COMMENT ON COLUMN nodes_now.utilisation IS 'Mean busy share of its GPUs, 0 to 1';
COMMENT ON COLUMN nodes_now.silent IS 'Seconds since it was last heard';
COMMENT ON COLUMN nodes_now.last_seen IS 'When it was last heard (UTC)';
COMMENT ON COLUMN nodes_now.joined_at IS 'When it registered (UTC)';
