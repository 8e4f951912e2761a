-- Every pool as it is now: policy, GPUs, and what waits for them.
CREATE OR REPLACE VIEW pools_now AS
WITH offered AS (
    SELECT g.pool, count(*) AS gpus, count(*) FILTER (g.state = 'busy') AS busy, count(*) FILTER (g.state = 'free') AS free
    FROM gpus_now g
    WHERE g.state <> 'offline'
    GROUP BY g.pool
),
asked AS (
    SELECT j.pool, count(*) FILTER (j.state = 'pending') AS pending, count(*) FILTER (j.lease_id IS NOT NULL) AS active,
           coalesce(sum(j.gpus_min) FILTER (j.state = 'pending'), 0) AS gpus_wanted
    FROM jobs j
    WHERE j.finished_at IS NULL
    GROUP BY j.pool
),
governed AS (
    SELECT s.pool, arg_max(s.policy, s.id) AS policy
    FROM policy_settings s
    GROUP BY s.pool
)
SELECT pool, p.policy, coalesce(o.gpus, 0) AS gpus, coalesce(o.busy, 0) AS busy, coalesce(o.free, 0) AS free,
       coalesce(a.active, 0) AS active, coalesce(a.pending, 0) AS pending, coalesce(a.gpus_wanted, 0) AS gpus_wanted
FROM offered o FULL JOIN asked a USING (pool) FULL JOIN governed p USING (pool)
ORDER BY pool;
COMMENT ON VIEW pools_now IS 'Every pool as it is now: policy, GPUs, and what waits for them';
COMMENT ON COLUMN pools_now.pool IS 'Pool';
COMMENT ON COLUMN pools_now.policy IS 'Policy that was set for it, NULL: that of config.toml';
COMMENT ON COLUMN pools_now.gpus IS 'GPUs and slots that are there';
COMMENT ON COLUMN pools_now.busy IS 'Of these, held by a lease';
COMMENT ON COLUMN pools_now.free IS 'Of these, ready for a job';
COMMENT ON COLUMN pools_now.active IS 'Jobs that hold GPUs';
COMMENT ON COLUMN pools_now.pending IS 'Jobs that wait for GPUs';
COMMENT ON COLUMN pools_now.gpus_wanted IS 'GPUs that these need together';
