-- Settings of policies, newest first.
SELECT * FROM policy_settings ORDER BY id DESC LIMIT 100
