-- The version of the policy that is in force in each pool.
SELECT pool, max(id) FROM policy_settings GROUP BY pool
