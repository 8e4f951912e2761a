-- Jobs of a pool that wait for something other than GPUs, and for what. $1: pool, $2: now (s since the epoch).
WITH active_tasks AS (
    SELECT array_id, count(*) AS running FROM jobs WHERE array_id IS NOT NULL AND lease_id IS NOT NULL GROUP BY array_id
),
unmet AS (
    SELECT d.job_id, min(d.needs) AS needs, count(*) AS n FROM dependencies d WHERE NOT d.met GROUP BY d.job_id
)
SELECT j.id,
       CASE WHEN j.held THEN 'held' WHEN u.n IS NOT NULL THEN 'dependency' WHEN epoch(j.not_before) > $2 THEN 'backoff'
            WHEN j.state = 'submitted' THEN 'weights' ELSE 'cap' END AS code,
       CASE WHEN j.held THEN 'held: ''stoker release ' || j.id || ''' lets it go'
            WHEN u.n = 1 AND u.needs = j.begin_after AND j.begins = 'joint' THEN 'waits to train its first steps together with job ' || u.needs
            WHEN u.n = 1 AND u.needs = j.begin_after THEN 'waits for job ' || u.needs || ' to end, with whose adapter it is to begin'
            WHEN u.n = 1 THEN 'waits for job ' || u.needs || ' to end'
            WHEN u.n > 1 THEN 'waits for ' || u.n || ' jobs to end, the first of them job ' || u.needs
            WHEN epoch(j.not_before) > $2 THEN 'backs off after a failed attempt until ' || strftime(j.not_before, '%H:%M:%S') || ' UTC'
            WHEN j.state = 'submitted' THEN 'waits for job ' || j.begin_from || ' to save a checkpoint, with which it is to begin'
            ELSE 'its array may run ' || j.array_cap || ' task' || CASE WHEN j.array_cap > 1 THEN 's' ELSE '' END || ' at once' END AS reason
FROM jobs j
LEFT JOIN unmet u ON u.job_id = j.id
LEFT JOIN active_tasks a ON a.array_id = j.array_id
WHERE j.pool = $1 AND j.finished_at IS NULL AND j.lease_id IS NULL AND j.state IN ('submitted', 'pending')
QUALIFY j.state = 'submitted' OR j.held OR coalesce(epoch(j.not_before) > $2, false)
     OR (j.array_cap IS NOT NULL
         AND row_number() OVER (PARTITION BY j.array_id, j.state, coalesce(epoch(j.not_before) > $2, false), j.held ORDER BY j.id)
             > j.array_cap - coalesce(a.running, 0))
ORDER BY j.id
