-- Whether a lease of a job had a part on a runner. $1: lease, $2: runner, $3: job.
SELECT w.lease_id FROM workers w JOIN leases l ON l.id = w.lease_id WHERE w.lease_id = $1 AND w.node_id = $2 AND l.job_id = $3
