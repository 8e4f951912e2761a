-- The policy in force of each pool.
SELECT * FROM policy_history QUALIFY row_number() OVER (PARTITION BY pool ORDER BY id DESC) = 1 ORDER BY pool
