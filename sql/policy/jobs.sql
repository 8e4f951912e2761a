-- Jobs of a pool that have not ended, as they stand. What follows for the moment of a View is worked out there, in NumPy, and so are the
-- joins with other tables: in SQL they cost more to plan than to compute. $1: pool.
SELECT id, submitted_at, state = 'pending' AS pending, state = 'suspending' AS stopping, held, not_before,
       gpus_min, gpus_max, priority, demand <> 'best-effort' AS timed, demand = 'strict' AS strict, deadline,
       attained, run_time, preemptions, attempts, hash(owner) AS owner, hash(model) AS model, hash(model, gpus_min) AS model_on_gpus,
       array_id, array_cap::DOUBLE AS array_cap, lease_id, signature, first_start_at, unmeasured,
       total_steps::DOUBLE AS total_steps, est_duration, gpu_memory,
       kind, backbone, share, excluded, place, saved_bytes::DOUBLE AS saved_bytes, bundle IS NOT NULL AS handed_on, not_sent, begin_from::DOUBLE AS begin_from
FROM jobs
WHERE pool = $1 AND finished_at IS NULL
