-- Settings of policies, newest first.
SELECT * FROM policy_history ORDER BY id DESC LIMIT 100
