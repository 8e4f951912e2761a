-- Progress of jobs, with the metric that their stopping rule watches and the lease it was made under.
SELECT j.id, p.step, coalesce(p.total_steps, j.total_steps) AS total_steps, p.loss, p.metric, p.seconds_per_step,
       p.checkpoint_step, p.peak_memory, epoch(p.updated_at) AS updated_at, j.spec ->> '$.stop.metric' AS stop_metric,
       CASE WHEN p.updated_at >= l.started_at THEN l.id END AS lease_id
FROM jobs j LEFT JOIN progress p ON p.job_id = j.id LEFT JOIN leases l ON l.id = j.lease_id
WHERE j.id IN (SELECT unnest($1::BIGINT[]))
