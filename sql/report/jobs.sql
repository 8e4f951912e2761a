-- The jobs, newest first, each with its results.
WITH chosen AS (
    SELECT j.id, j.name, j.owner, j.model, j.state, j.outcome, j.state_reason, j.gpus_min, j.priority, j.demand, j.attempts,
           j.preemptions, j.failures, j.submitted_at, j.first_start_at, j.finished_at, j.total_steps,
           json_extract_string(j.spec, '$.stop.metric') AS metric
    FROM jobs j
    WHERE ($jobs IS NULL OR list_contains($jobs, j.id)) AND (j.finished_at IS NULL OR epoch(j.finished_at) >= $since)
    ORDER BY j.id DESC
    LIMIT $most
),
held AS (
    SELECT l.job_id, sum(coalesce(epoch(l.ended_at), $now) - epoch(l.granted_at)) AS seconds FROM leases l GROUP BY l.job_id
),
last_step AS (
    SELECT t.job_id, max(t.deadline) AS deadline FROM tiers t GROUP BY t.job_id
)
SELECT c.id, c.name, c.owner, c.model, c.state, c.outcome, c.gpus_min AS gpus, c.priority, c.attempts, c.preemptions, c.failures,
       epoch(c.submitted_at) AS submitted, epoch(c.first_start_at) AS started, epoch(c.finished_at) AS finished,
       epoch(c.finished_at) - epoch(c.submitted_at) AS jct,
       greatest(coalesce(epoch(c.finished_at), $now) - epoch(c.submitted_at) - coalesce(h.seconds, 0), 0) AS waited,
       o.gpu_hours * 3600 AS gpu_seconds, o.cost, o.stored_bytes,
       epoch(d.deadline) AS deadline, c.metric, p.step, coalesce(p.total_steps, c.total_steps) AS total_steps, p.loss,
       coalesce(w.reason, c.state_reason) AS note
FROM chosen c
JOIN costs o ON o.job_id = c.id
LEFT JOIN held h ON h.job_id = c.id
LEFT JOIN last_step d ON d.job_id = c.id
LEFT JOIN progress p ON p.job_id = c.id
LEFT JOIN waiting w ON w.job_id = c.id
ORDER BY c.id DESC
