-- What the policy of a pool kept for its next decision, as it was set last. $1: pool, $2: version of its configuration, $3: policy.
SELECT memory
FROM decisions
WHERE pool = $1 AND config_id = $2 AND policy = $3 AND memory IS NOT NULL
ORDER BY id DESC
LIMIT 1
