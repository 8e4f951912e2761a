-- Processes of a runner that were alive when last heard of: its agent and its supervisors.
SELECT pid, pid_started, boot_id FROM nodes WHERE id = $1
UNION ALL
SELECT pid, pid_started, boot_id FROM workers WHERE node_id = $1 AND state <> 'exited' AND pid IS NOT NULL
