-- Jobs of a pool that have not ended, as they stand. What follows for the moment of a View is worked out there, in NumPy: in SQL it
-- costs more to plan than to compute. $1: pool.
SELECT j.id, j.submitted_at, j.state = 'pending' AS pending, j.state = 'suspending' AS stopping, j.held, j.not_before,
       j.gpus_min, j.gpus_max, j.priority, j.demand <> 'best-effort' AS timed, j.demand = 'strict' AS strict, j.deadline,
       j.attained, j.run_time, j.preemptions, hash(j.owner) AS owner, hash(j.model) AS model, j.array_id, j.array_cap,
       j.lease_id, l.granted_at, l.started_at, l.expires_at, l.gpu_count, l.profile AS profiling,
       j.signature, j.first_start_at, j.unmeasured,
       w.ahead, w.ahead_most, w.spread, w.duration, w.gpu_memory, w.done, w.measured
FROM jobs j
JOIN work w ON w.job_id = j.id
LEFT JOIN leases l ON l.id = j.lease_id
WHERE j.pool = $1 AND j.finished_at IS NULL
