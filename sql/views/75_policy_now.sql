-- The newest decision of each pool's policy, and how its ticks of the last hour went.
CREATE OR REPLACE VIEW policy_now AS
WITH recent AS (
    SELECT d.pool, sum(d.ticks) AS ticks, max(d.view_seconds + d.plan_seconds + d.apply_seconds) AS slowest,
           count(*) FILTER (d.outcome IN ('invalid', 'error')) AS refused
    FROM decisions d
    WHERE d.last_ts > make_timestamp(epoch_us(now())) - INTERVAL 1 HOUR
    GROUP BY d.pool
)
SELECT d.pool, d.policy, d.id AS decision_id, d.ts, d.last_ts, d.jobs_seen, d.status, d.gap, d.plan_seconds, d.outcome, d.error,
       r.ticks, r.slowest, coalesce(r.refused, 0) AS refused
FROM decisions d LEFT JOIN recent r ON r.pool = d.pool
WHERE d.id IN (SELECT max(x.id) FROM decisions x GROUP BY x.pool)
ORDER BY d.pool;
COMMENT ON VIEW policy_now IS 'The newest decision of each pool''s policy, and how its ticks of the last hour went';
COMMENT ON COLUMN policy_now.pool IS 'Pool';
COMMENT ON COLUMN policy_now.policy IS 'Policy';
COMMENT ON COLUMN policy_now.decision_id IS 'Newest decision';
COMMENT ON COLUMN policy_now.ts IS 'Its first tick (UTC)';
COMMENT ON COLUMN policy_now.last_ts IS 'Its last tick (UTC)';
COMMENT ON COLUMN policy_now.jobs_seen IS 'Jobs in the view';
COMMENT ON COLUMN policy_now.status IS 'Solver status, or ok';
COMMENT ON COLUMN policy_now.gap IS 'Relative optimality gap, where certified';
COMMENT ON COLUMN policy_now.plan_seconds IS 'Time of plan()';
COMMENT ON COLUMN policy_now.outcome IS 'applied, unchanged, invalid or error';
COMMENT ON COLUMN policy_now.error IS 'Why the plan was refused, or what the policy raised';
COMMENT ON COLUMN policy_now.ticks IS 'Ticks of the decisions of the last hour, NULL: none';
COMMENT ON COLUMN policy_now.slowest IS 'Slowest first tick of these (s)';
COMMENT ON COLUMN policy_now.refused IS 'Decisions of the last hour that were invalid or raised';
