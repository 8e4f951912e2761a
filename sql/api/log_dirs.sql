-- Run directories of a job's leases, newest first: the first node's, where rank 0 is.
SELECT w.lease_id AS lease, arg_min(w.run_dir, w.node_id) AS run_dir, bool_and(w.state = 'exited') AS ended
FROM workers w JOIN leases l ON l.id = w.lease_id
WHERE l.job_id = $1 AND w.run_dir IS NOT NULL
GROUP BY w.lease_id
ORDER BY w.lease_id DESC
