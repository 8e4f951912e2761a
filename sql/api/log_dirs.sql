-- Run directories of a job's leases, newest first: the first node's, where rank 0 is; and whose they are.
WITH first AS (
    SELECT w.lease_id AS lease, min(w.node_id) AS node, arg_min(w.run_dir, w.node_id) AS run_dir,
           bool_and(w.state = 'exited') AS ended
    FROM workers w JOIN leases l ON l.id = w.lease_id
    WHERE l.job_id = $1 AND w.run_dir IS NOT NULL
    GROUP BY w.lease_id
)
SELECT f.lease, f.run_dir, f.ended, f.node, n.host, n.home, n.boot_id, n.pid, n.state
FROM first f JOIN nodes n ON n.id = f.node
ORDER BY f.lease DESC
