-- What is needed to end leases: their jobs with their counters.
SELECT l.id, l.job_id, l.gpu_count, epoch(l.started_at) AS started_at, l.stop_reason,
       j.failures, j.preemptions, j.cancel_requested, j.held, j.run_time, j.attained, j.spec, p.metric, p.step
FROM leases l JOIN jobs j ON j.id = l.job_id LEFT JOIN progress p ON p.job_id = j.id
WHERE l.id IN (SELECT unnest($1::BIGINT[])) AND l.state <> 'ended'
ORDER BY l.id
