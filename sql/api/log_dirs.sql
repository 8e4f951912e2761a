-- Run directories of a job's leases, newest first and of a gang the first node's first, where rank 0 is; and whose they are.
SELECT w.lease_id AS lease, w.run_dir, bool_and(w.state = 'exited') OVER (PARTITION BY w.lease_id) AS ended,
       w.node_id AS node, n.host, n.home, n.boot_id, n.pid, n.state
FROM workers w
JOIN leases l ON l.id = w.lease_id
JOIN nodes n ON n.id = w.node_id
WHERE l.job_id = $1 AND w.run_dir IS NOT NULL
ORDER BY w.lease_id DESC, w.node_id
