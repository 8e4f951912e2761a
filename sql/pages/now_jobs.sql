-- Every job that has not ended: those that hold GPUs first, then the queue in the order in which it is served. $1: at most so many.
SELECT j.id, j.name, j.owner, j.pool, j.kind, j.state, j.priority, j.held, j.gpus_min, j.gpus_max, j.array_id, j.lease_id,
       epoch(j.submitted_at) + j.run_time AS waits_since, epoch(l.started_at) AS started, epoch(l.expires_at) AS lease_end, l.share,
       p.step, coalesce(p.total_steps, j.total_steps) AS steps, p.loss, p.metric, epoch(p.updated_at) AS reported,
       w.position, coalesce(w.code, '') AS code, coalesce(w.reason, j.state_reason, '') AS reason,
       CASE WHEN j.lease_id IS NULL THEN epoch(o.est_start) END AS est_start, epoch(o.est_end) AS est_end,
       epoch(j.deadline) AS deadline, o.deadline_risk AS risk, CAST(j.spec -> '$.labels' AS VARCHAR) AS labels
FROM jobs j
LEFT JOIN leases l ON l.id = j.lease_id
LEFT JOIN progress p ON p.job_id = j.id
LEFT JOIN waiting w ON w.job_id = j.id
LEFT JOIN outlook o ON o.job_id = j.id
WHERE j.finished_at IS NULL
ORDER BY j.lease_id IS NULL, w.position NULLS LAST, j.priority DESC, j.id
LIMIT $1
