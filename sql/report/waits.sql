-- Seconds waited by reason: a row for each job and reason ($by_job), or for each model and reason. Commands count as one model if their
-- names without numbers, users and labels are the same: their models are digests, which mean nothing to people.
-- A stay in 'submitted' waits for other jobs or for a release; a stay in 'pending' for the other tasks of its
-- array while as many run as may ('cap'), else for GPUs, and how the lease before it ended says why it needs them again; 'assigned' and 'starting' are the start-up, GPUs in hand.
WITH chosen AS (
    SELECT j.id, j.name, j.model, regexp_extract_all(lower(j.name), '[\pL\pN]+') AS words,
           regexp_extract_all(lower(concat_ws(' ', j.owner, j.labels)), '[\pL\pN]+') AS known, j.id IN (SELECT d.job_id FROM dependencies d) AS depends
    FROM jobs j
    WHERE ($jobs IS NULL OR list_contains($jobs, j.id)) AND (j.finished_at IS NULL OR epoch(j.finished_at) >= $since)
),
turned AS (  -- total of the clock changes up to an event
    SELECT seq, sum((detail ->> '$.seconds')::DOUBLE) OVER (ORDER BY seq) AS seconds FROM events WHERE kind = 'clock.set'
),
entered AS (
    SELECT e.seq, e.job_id, e.lease_id, e.after, e.reason, lag(e.after) OVER (PARTITION BY e.job_id ORDER BY e.seq) AS before
    FROM events e JOIN chosen c ON c.id = e.job_id
    WHERE e.kind = 'job.state'
),
stays AS (
    SELECT s.job_id, s.lease_id, s.after, s.reason, s.before, e.kind = 'job.waiting' AND e.after = 'cap' AS capped,
           coalesce(lead(epoch(e.ts) - coalesce(t.seconds, 0)) OVER (PARTITION BY e.job_id ORDER BY e.seq),
                    $now - coalesce((SELECT max_by(seconds, seq) FROM turned), 0)) - epoch(e.ts) + coalesce(t.seconds, 0) AS seconds
    FROM events e ASOF JOIN entered s ON s.job_id = e.job_id AND s.seq <= e.seq ASOF LEFT JOIN turned t ON e.seq >= t.seq
    WHERE e.kind IN ('job.state', 'job.waiting')
),
reasons AS (
    SELECT s.job_id, s.seconds,
           CASE
               WHEN s.after IN ('assigned', 'starting') THEN 'start'
               WHEN s.after = 'submitted' AND c.depends AND s.reason <> 'held' THEN 'dependency'
               WHEN s.after = 'submitted' THEN 'held'
               WHEN s.capped THEN 'cap'
               WHEN s.before IS NULL OR s.before = 'submitted' OR l.outcome = 'profiled' THEN 'gpus'
               WHEN l.outcome = 'preempted' THEN 'preempted'
               WHEN l.outcome IN ('lost', 'unkillable') THEN 'lost'
               ELSE 'retry'
           END AS code
    FROM stays s JOIN chosen c ON c.id = s.job_id LEFT JOIN leases l ON l.id = s.lease_id
    WHERE s.after IN ('submitted', 'pending', 'assigned', 'starting') AND s.seconds > 0
),
named AS (
    SELECT c.id, c.name, c.model, list_filter(c.words, lambda w: NOT regexp_full_match(w, '\d+(e\d*)?')) AS words, c.known, len(c.words) AS before
    FROM chosen c
),
families AS (
    SELECT n.id, n.name,
           CASE WHEN NOT starts_with(n.model, 'command/') THEN n.model
                ELSE 'command/' || coalesce(nullif(regexp_replace(array_to_string(
                         list_filter(n.words, lambda w: NOT list_contains(n.known, w)), '-'),
                         CASE WHEN len(n.words) = n.before THEN '\d+$' ELSE '^$' END, ''), ''),
                         nullif(array_to_string(n.words, '-'), ''), n.name) END AS family
    FROM named n
),
groups AS (
    SELECT f.id, CASE WHEN $by_job THEN CAST(f.id AS VARCHAR) ELSE f.family END AS label,
           CASE WHEN $by_job THEN f.name ELSE f.family END AS name
    FROM families f
),
sizes AS (
    SELECT g.label, count(*) AS jobs, min(g.id) AS first_id FROM groups g GROUP BY g.label
)
SELECT g.label, any_value(g.name) AS name, z.jobs, r.code, coalesce(sum(r.seconds), 0) AS seconds
FROM groups g JOIN sizes z ON z.label = g.label LEFT JOIN reasons r ON r.job_id = g.id
GROUP BY g.label, z.jobs, z.first_id, r.code
ORDER BY z.first_id, r.code
