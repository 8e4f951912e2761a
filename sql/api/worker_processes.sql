-- Supervisors of a runner that were alive when last heard of. $1: the runner.
SELECT pid, pid_started, boot_id FROM workers WHERE node_id = $1 AND state <> 'exited' AND pid IS NOT NULL
