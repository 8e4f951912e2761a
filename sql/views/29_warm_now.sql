-- Processes that have loaded what jobs import, from which these start by a fork: what is warm, what loads, and until when it stays.
CREATE OR REPLACE VIEW warm_now AS
SELECT s.node_id AS node, nullif(s.recipe, '') AS recipe, nullif(s.backbone, '') AS backbone, s.state, s.since, s.until, s.memory, s.pid,
       s.note, (SELECT count(*) FROM gpus g WHERE g.node_id = s.node_id AND g.warm = s.backbone) AS gpus,
       (SELECT count(*) FROM leases l JOIN workers w ON w.lease_id = l.id JOIN jobs j ON j.id = l.job_id
        WHERE w.node_id = s.node_id AND w.state = 'running' AND l.warm AND s.recipe IN (coalesce(j.spec ->> '$.recipe', ''), 'any')
              AND (s.backbone = '' OR coalesce(j.backbone, s.backbone) = s.backbone)) AS jobs
FROM fork_servers s
ORDER BY s.node_id, s.recipe, s.backbone;
COMMENT ON VIEW warm_now IS 'Processes from which jobs start by a fork: what is warm, what loads, and until when it stays';
COMMENT ON COLUMN warm_now.node IS 'Runner';
COMMENT ON COLUMN warm_now.recipe IS 'Recipe whose jobs it forks; any: all that start from its backbone, a directory; NULL: those with an entrypoint';
COMMENT ON COLUMN warm_now.backbone IS 'Pre-trained model that it has loaded; NULL: none';
COMMENT ON COLUMN warm_now.state IS 'loading; ready; or failed, which it is not tried again until its runner starts anew';
COMMENT ON COLUMN warm_now.since IS 'Since when it is in that state (UTC)';
COMMENT ON COLUMN warm_now.until IS 'When it ends if no job uses it meanwhile (UTC); NULL: it is kept';
COMMENT ON COLUMN warm_now.memory IS 'Bytes of main memory that it took when it was ready';
COMMENT ON COLUMN warm_now.pid IS 'Process id';
COMMENT ON COLUMN warm_now.note IS 'Why it failed';
COMMENT ON COLUMN warm_now.gpus IS 'GPUs of its runner that a policy counts in the pool of its backbone';
COMMENT ON COLUMN warm_now.jobs IS 'Jobs that were forked from it or one before it, and run';
