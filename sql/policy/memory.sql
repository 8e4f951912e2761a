-- Memory that the policy of a pool kept for its next decision, as it was set last: settings in a row of the same policy and the same code keep one
-- memory. The newest setting that was another is `broken`. $1: pool, $2: policy, $3: digest of its code, NULL: Stoker's own, $4: version of
-- its configuration. Version 0 is the daemon's default, whose code is not known.
WITH others AS (
    SELECT coalesce(max(id), CASE WHEN $3 IS NULL THEN -1 ELSE 0 END) AS broken
    FROM policy_history
    WHERE pool = $1 AND id < $4 AND (policy <> $2 OR code IS DISTINCT FROM $3)
)
SELECT o.broken,
       (SELECT arg_max(d.memory, d.id)
        FROM decisions d
        WHERE d.pool = $1 AND d.policy = $2 AND d.memory IS NOT NULL AND (d.config_id > o.broken AND d.config_id < $4 OR d.config_id = $4)) AS memory
FROM others o
