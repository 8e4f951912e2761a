-- Policies as they were set, the newest of a pool in force, each with the code that was loaded.
CREATE OR REPLACE VIEW policy_history AS
WITH told AS (
    SELECT TRY_CAST(e.detail ->> 'id' AS BIGINT) AS id, any_value(e.detail ->> 'code') AS code
    FROM events e
    WHERE e.kind = 'policy.set'
    GROUP BY 1
)
SELECT s.id, s.pool, s.policy, s.interval, s.config, t.code, s.set_by, s.ts
FROM policy_settings s LEFT JOIN told t ON t.id = s.id;
COMMENT ON VIEW policy_history IS 'Policies as they were set, the newest of a pool in force, each with the code that was loaded';
COMMENT ON COLUMN policy_history.id IS 'Version of the configuration: config_id of the decisions under it';
COMMENT ON COLUMN policy_history.pool IS 'Pool';
COMMENT ON COLUMN policy_history.policy IS 'Policy';
COMMENT ON COLUMN policy_history.interval IS 'Seconds between ticks; events wake it too';
COMMENT ON COLUMN policy_history.config IS 'Configuration of the policy';
COMMENT ON COLUMN policy_history.code IS 'Digest of the source of a policy of one''s own, NULL: one of Stoker''s, or not known';
COMMENT ON COLUMN policy_history.set_by IS 'Who set it; daemon: it started and found other code than before';
COMMENT ON COLUMN policy_history.ts IS 'When (UTC)';
