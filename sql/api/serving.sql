-- A job that serves, in its present lease: since when it runs, whether it answers yet, how many it has answered, and its newest minute.
SELECT epoch(l.started_at) AS since, coalesce(p.updated_at >= l.started_at, false) AS answers, p.step AS answered,
       epoch(n.minute) AS minute, n.p50, n.p95, n.p99, n.queue, n.requests, n.refused, n.errors
FROM jobs j
JOIN leases l ON l.id = j.lease_id AND l.state = 'running'
LEFT JOIN progress p ON p.job_id = j.id
LEFT JOIN latency_now n ON n.lease_id = l.id
WHERE j.id = $1 AND j.kind = 'infer'
ORDER BY n.minute DESC NULLS LAST
LIMIT 1
