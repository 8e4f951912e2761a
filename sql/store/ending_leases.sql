-- What is needed to end leases: their jobs with their counters. `measured`: after a profiling run, whether its pool knows its speed;
-- `reported`: whether the progress is this lease's, not that of an attempt before.
SELECT l.id, l.job_id, l.gpu_count, epoch(l.granted_at) AS granted_at, epoch(l.started_at) AS started_at, l.stop_reason, l.profile, l.share, coalesce(j.unmeasured, 0) AS unmeasured,
       l.profile AND EXISTS (FROM speeds s JOIN gpus g ON g.name = s.gpu_name
                             WHERE s.signature = j.signature AND g.pool = j.pool) AS measured,
       j.excluded, j.failures, j.preemptions, j.cancel_requested, j.held, j.run_time, j.attained, j.spec, p.metric, p.step, p.total_steps,
       coalesce(p.updated_at >= l.started_at, false) AND EXISTS (FROM report_marks m WHERE m.lease_id = l.id AND m.rank = 0) AS reported,
       (SELECT count(*) FROM leases o WHERE o.job_id = j.id AND o.outcome = 'lost'
          AND o.id > coalesce((SELECT max(e.id) FROM leases e WHERE e.job_id = j.id AND e.outcome <> 'lost'), 0)) AS losses
FROM leases l JOIN jobs j ON j.id = l.job_id LEFT JOIN progress p ON p.job_id = j.id
WHERE l.id IN (SELECT unnest($1::BIGINT[])) AND l.state <> 'ended'
ORDER BY l.id
