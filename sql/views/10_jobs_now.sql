-- Every job as it is now, with its progress, where it runs, why it waits and when it should end.
CREATE OR REPLACE VIEW jobs_now AS
WITH clock AS (SELECT make_timestamp(epoch_us(now())) AS moment),
holding AS (
    SELECT g.lease_id, string_agg(DISTINCT g.node, ',' ORDER BY g.node) AS nodes, count(*) AS gpus,
           string_agg(DISTINCT s.id, ',' ORDER BY s.id) AS silent_nodes, min(s.last_seen) AS silent_since
    FROM live_shares g LEFT JOIN silent_runners s ON s.id = g.node
    GROUP BY g.lease_id
),
partners AS (
    SELECT own.lease_id, string_agg(DISTINCT o.job_id || ' ' || j.name, ', ' ORDER BY o.job_id || ' ' || j.name) AS shared_with
    FROM live_shares own JOIN live_shares o ON o.gpu_id = own.gpu_id AND o.lease_id <> own.lease_id JOIN jobs j ON j.id = o.job_id
    GROUP BY own.lease_id
),
arrays AS (
    SELECT array_id, count(*) AS size, count(*) FILTER (finished_at IS NOT NULL) AS ended,
           count(*) FILTER (finished_at IS NULL AND lease_id IS NOT NULL) AS active, count(*) FILTER (state = 'failed') AS failed,
           count(*) FILTER (state = 'cancelled') AS cancelled,
           count(*) FILTER (held AND finished_at IS NULL) AS on_hold, CASE WHEN ended = size THEN max(finished_at) END AS over,
           count(h.silent_since) AS silent, coalesce(sum(h.gpus), 0)::BIGINT AS gpus
    FROM jobs LEFT JOIN holding h USING (lease_id)
    WHERE array_id IS NOT NULL
    GROUP BY array_id
),
timed AS (
    SELECT j.*, c.moment, p.step, p.loss, p.metric, p.seconds_per_step, p.checkpoint_step, p.peak_memory, p.updated_at AS reported_at,
           coalesce(p.total_steps, j.total_steps) AS steps, h.nodes, coalesce(h.gpus, 0) AS gpus, l.expires_at AS lease_end,
           h.silent_nodes, h.silent_since, i.iterations AS needed, r.shared_with, l.warm,
           w.code, w.reason AS waits, w.position, CASE WHEN j.lease_id IS NULL THEN o.est_start END AS est_start,
           a.size AS array_size, a.ended AS array_ended, a.active AS array_active, a.failed AS array_failed,
           a.cancelled AS array_cancelled, a.silent AS array_silent, a.over AS array_finished_at, a.gpus AS array_gpus,
           a.on_hold AS array_held,
           coalesce(o.ran, j.run_time) AS ran, coalesce(j.finished_at, o.est_end) AS ends, o.deadline_risk AS risk,
           epoch(coalesce(j.finished_at, c.moment) - j.submitted_at) AS lived
    FROM jobs j
    CROSS JOIN clock c
    LEFT JOIN progress p ON p.job_id = j.id
    LEFT JOIN leases l ON l.id = j.lease_id
    LEFT JOIN holding h ON h.lease_id = j.lease_id
    LEFT JOIN partners r ON r.lease_id = j.lease_id
    LEFT JOIN waiting w ON w.job_id = j.id
    LEFT JOIN outlook o ON o.job_id = j.id
    LEFT JOIN iteration_estimates i ON i.job_id = j.id AND j.finished_at IS NULL
    LEFT JOIN arrays a ON a.array_id = j.array_id
)
SELECT e.id, e.name, e.owner, e.pool, e.kind, e.model, e.state, e.state_since,
       CASE WHEN e.state = 'completed' THEN 100.0
            WHEN e.steps > 0 AND e.step > 0 THEN
                -- One that stops at a metric may stop at any step: only where it is expected to is a share known.
                CASE WHEN e.spec ->> '$.stop.metric' IS NULL THEN least(100.0 * e.step / e.steps, 100.0)
                     WHEN e.needed IS NOT NULL THEN least(100.0 * e.step / least(e.needed, e.steps), 99.0) END
            WHEN e.steps > 0 THEN 0.0 END AS progress,
       e.step, e.steps AS total_steps, e.loss, e.metric, e.seconds_per_step, e.gpus, e.gpus_min, e.gpus_max, e.nodes,
       greatest(e.lived - e.ran, 0) AS waited, e.ran, CASE WHEN e.finished_at IS NULL THEN epoch(e.ends - e.moment) END AS eta,
       e.ends AS eta_at, e.est_start, e.deadline,
       CASE WHEN e.deadline IS NULL THEN NULL
            WHEN e.finished_at IS NULL THEN e.risk
            WHEN e.state = 'completed' AND e.finished_at <= e.deadline THEN 'met'
            ELSE 'missed' END AS deadline_risk,
       e.demand, e.priority, e.held AND e.finished_at IS NULL AS held, e.code, coalesce(e.waits, e.state_reason) AS reason, e.position,
       e.array_id, e.array_index, e.array_size, e.array_ended, e.array_active, e.array_failed, e.array_cancelled, e.array_silent,
       e.array_finished_at,
       e.attempts, e.failures, e.preemptions, e.lease_id, e.lease_end, e.checkpoint_step, e.peak_memory, e.reported_at,
       e.silent_nodes, e.silent_since, e.cancel_requested, e.outcome, e.exit_code, e.submitted_at, e.first_start_at, e.finished_at, e.lived AS age,
       e.share, e.shared_with, e.warm, e.array_gpus, e.array_held
FROM timed e;
COMMENT ON VIEW jobs_now IS 'Every job as it is now, with its progress, where it runs, why it waits and when it should end';
COMMENT ON COLUMN jobs_now.id IS 'Number of the job';
COMMENT ON COLUMN jobs_now.name IS 'Name';
COMMENT ON COLUMN jobs_now.owner IS 'User who submitted it';
COMMENT ON COLUMN jobs_now.pool IS 'Pool';
COMMENT ON COLUMN jobs_now.kind IS 'train, finetune, prompt or infer';
COMMENT ON COLUMN jobs_now.model IS 'Model that is trained';
COMMENT ON COLUMN jobs_now.state IS 'Present state';
COMMENT ON COLUMN jobs_now.state_since IS 'When it entered that state (UTC)';
COMMENT ON COLUMN jobs_now.progress IS 'Share of its steps that is done (%); of those that it is expected to need, if it stops at a metric; NULL: not known';
COMMENT ON COLUMN jobs_now.step IS 'Last step reported';
COMMENT ON COLUMN jobs_now.total_steps IS 'Steps in all (at most, if it stops at a metric), NULL: not known';
COMMENT ON COLUMN jobs_now.loss IS 'Last loss';
COMMENT ON COLUMN jobs_now.metric IS 'Last value of the metric of its stopping rule';
COMMENT ON COLUMN jobs_now.seconds_per_step IS 'Seconds a step';
COMMENT ON COLUMN jobs_now.gpus IS 'GPUs that it holds now';
COMMENT ON COLUMN jobs_now.gpus_min IS 'GPUs that it needs';
COMMENT ON COLUMN jobs_now.gpus_max IS 'GPUs that it can use at most';
COMMENT ON COLUMN jobs_now.nodes IS 'Runners on which it holds GPUs, comma-separated';
COMMENT ON COLUMN jobs_now.waited IS 'Seconds since submission in which it did not run';
COMMENT ON COLUMN jobs_now.ran IS 'Seconds run, over all attempts';
COMMENT ON COLUMN jobs_now.eta IS 'Seconds until it should end, NULL: not known';
COMMENT ON COLUMN jobs_now.eta_at IS 'When it should end, or ended (UTC)';
COMMENT ON COLUMN jobs_now.est_start IS 'When it should start (UTC), while it waits';
COMMENT ON COLUMN jobs_now.deadline IS 'Last deadline (UTC)';
COMMENT ON COLUMN jobs_now.deadline_risk IS 'met, missed, safe, at risk or unknown; NULL: no deadline';
COMMENT ON COLUMN jobs_now.demand IS 'best-effort, soft or strict';
COMMENT ON COLUMN jobs_now.priority IS 'Larger is more urgent';
COMMENT ON COLUMN jobs_now.held IS 'Held by a person, and has not ended';
COMMENT ON COLUMN jobs_now.code IS 'Why it waits, in a word';
COMMENT ON COLUMN jobs_now.reason IS 'Why it waits, or why it is in its state, in words';
COMMENT ON COLUMN jobs_now.position IS 'Place in the queue of its pool, from 1';
COMMENT ON COLUMN jobs_now.array_id IS 'Array job: id of its first task';
COMMENT ON COLUMN jobs_now.array_index IS 'Position in the array';
COMMENT ON COLUMN jobs_now.array_size IS 'Tasks of the array';
COMMENT ON COLUMN jobs_now.array_ended IS 'Tasks of the array that have ended';
COMMENT ON COLUMN jobs_now.array_active IS 'Tasks of the array that hold GPUs';
COMMENT ON COLUMN jobs_now.array_failed IS 'Tasks of the array that failed';
COMMENT ON COLUMN jobs_now.array_cancelled IS 'Tasks of the array that were cancelled';
COMMENT ON COLUMN jobs_now.array_gpus IS 'GPUs that tasks of the array hold now';
COMMENT ON COLUMN jobs_now.array_held IS 'Tasks of the array that a person holds';
COMMENT ON COLUMN jobs_now.array_silent IS 'Tasks of the array on runners that are not heard';
COMMENT ON COLUMN jobs_now.array_finished_at IS 'When its last task ended (UTC), NULL: one has not ended';
COMMENT ON COLUMN jobs_now.attempts IS 'Leases granted so far';
COMMENT ON COLUMN jobs_now.failures IS 'Attempts that failed by its own fault';
COMMENT ON COLUMN jobs_now.preemptions IS 'Times it was stopped for another job or at the end of a lease';
COMMENT ON COLUMN jobs_now.lease_id IS 'Live lease';
COMMENT ON COLUMN jobs_now.lease_end IS 'When the live lease ends (UTC), NULL: with the job';
COMMENT ON COLUMN jobs_now.checkpoint_step IS 'Step of its last checkpoint';
COMMENT ON COLUMN jobs_now.peak_memory IS 'Peak GPU memory of a rank (bytes)';
COMMENT ON COLUMN jobs_now.reported_at IS 'When it last reported (UTC)';
COMMENT ON COLUMN jobs_now.silent_nodes IS 'Of the runners on which it holds GPUs, those that are not heard, comma-separated, NULL: all are';
COMMENT ON COLUMN jobs_now.silent_since IS 'When the first of these was last heard (UTC)';
COMMENT ON COLUMN jobs_now.cancel_requested IS 'Cancelled, its worker has yet to stop';
COMMENT ON COLUMN jobs_now.outcome IS 'How it ended';
COMMENT ON COLUMN jobs_now.exit_code IS 'Exit code of the last attempt, negative: signal';
COMMENT ON COLUMN jobs_now.submitted_at IS 'When it was accepted (UTC)';
COMMENT ON COLUMN jobs_now.first_start_at IS 'When it first ran (UTC)';
COMMENT ON COLUMN jobs_now.finished_at IS 'When it ended (UTC)';
COMMENT ON COLUMN jobs_now.age IS 'Seconds from its submission until now or its end';
COMMENT ON COLUMN jobs_now.share IS 'Whether its submitter lets it share its GPUs: exclusive or packed; NULL: not said';
COMMENT ON COLUMN jobs_now.shared_with IS 'Numbers and names of the jobs that are on its GPUs too, NULL: none';
COMMENT ON COLUMN jobs_now.warm IS 'Forked from a process that had loaded what it imports; NULL: it has no lease, or has not started';
