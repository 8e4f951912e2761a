-- A job ($1), or the tasks of its array ($2), and where each serves: run_dir is NULL where none does now.
SELECT j.id AS job, j.name, j.kind, j.state, j.spec ->> '$.serve' AS serve, l.id AS lease, epoch(l.started_at) AS since, w.node_id AS node, w.run_dir
FROM jobs j
LEFT JOIN leases l ON l.id = j.lease_id AND l.state = 'running'
LEFT JOIN workers w ON w.lease_id = l.id AND w.state = 'running'
WHERE j.id = $1 OR ($2 AND j.array_id = $1)
ORDER BY w.run_dir IS NULL, j.id
