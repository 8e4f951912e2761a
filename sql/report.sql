-- Short queries of reports, by name; longer ones are in report/.

-- name: busy
-- Changes of the number of GPUs under lease (those within $step seconds are joined).
WITH changes AS (
    SELECT greatest(epoch(since), $start) AS moment, 1 AS change FROM gpu_leased WHERE epoch(since) < $end AND epoch(until) > $start
    UNION ALL
    SELECT least(epoch(until), $end) AS moment, -1 AS change FROM gpu_leased WHERE epoch(since) < $end AND epoch(until) > $start
)
SELECT avg(c.moment) AS moment, CAST(sum(c.change) AS BIGINT) AS change
FROM changes c
GROUP BY floor((c.moment - $start) / $step)
ORDER BY moment

-- name: causes
-- Causal models of pools: pairs of cause and effect of each newest model.
WITH pairs AS (
    SELECT m.pool, m.policy, m.objective, m.samples, unnest(from_json(m.edges, '[["VARCHAR"]]')) AS pair
    FROM causal_models m
)
SELECT pool, policy, objective, samples, pair[1] AS cause, pair[2] AS effect
FROM pairs
ORDER BY pool, policy, objective, cause, effect

-- name: demo_accuracy
-- Last accuracy that each job reported.
SELECT job_id, arg_max(value, step) FROM metrics WHERE name = 'accuracy' AND rank = 0 GROUP BY job_id

-- name: demo_twins
-- Losses of the demo's preempted job beside those of its undisturbed twin, step by step: how many, and how many are equal.
WITH losses AS (
    SELECT j.name, m.step, arg_max(m.value, m.seq + 1000000 * m.lease_id) AS loss
    FROM metrics m JOIN jobs j ON j.id = m.job_id
    WHERE m.name = 'loss' AND m.rank = 0 AND j.name IN ('questions', 'questions-undisturbed')
    GROUP BY j.name, m.step
)
SELECT count(*), count(*) FILTER (a.loss = b.loss)
FROM losses a JOIN losses b ON b.step = a.step
WHERE a.name = 'questions' AND b.name = 'questions-undisturbed'

-- name: extent
-- Number of jobs in the report, and the time that they span.
SELECT count(*) AS jobs, count(*) FILTER (finished_at IS NULL) AS unfinished,
       epoch(min(submitted_at)) AS first_submitted, epoch(max(finished_at)) AS last_finished
FROM jobs j
WHERE ($jobs IS NULL OR list_contains($jobs, j.id)) AND (j.finished_at IS NULL OR epoch(j.finished_at) >= $since)

-- name: gpus
-- GPUs and CPU slots that exist, or that a lease of the time held.
SELECT g.id, g.node_id, g.idx, g.kind, g.name
FROM gpus g JOIN nodes n ON n.id = g.node_id
WHERE (n.state NOT IN ('stopped', 'gone') AND g.health <> 'missing')
   OR g.id IN (
       SELECT h.gpu_id
       FROM lease_gpus h JOIN leases l ON l.id = h.lease_id
       WHERE epoch(l.granted_at) < $end AND coalesce(epoch(l.ended_at), $end) > $start
   )
ORDER BY g.node_id, g.idx

-- name: jct
-- Distribution of the JCT of completed jobs: every job when they are few, else about $most evenly ranked ones.
WITH ranked AS (
    SELECT epoch(j.finished_at) - epoch(j.submitted_at) AS jct,
           row_number() OVER (ORDER BY epoch(j.finished_at) - epoch(j.submitted_at), j.id) AS place,
           count(*) OVER () AS jobs
    FROM jobs j
    WHERE j.state = 'completed' AND ($jobs IS NULL OR list_contains($jobs, j.id)) AND epoch(j.finished_at) >= $since
)
SELECT r.jct, r.place / CAST(r.jobs AS DOUBLE) AS share
FROM ranked r
WHERE r.place = r.jobs OR (r.place - 1) % CAST(ceil(r.jobs / CAST($most AS DOUBLE)) AS BIGINT) = 0
ORDER BY r.place

-- name: measured
-- Measured use in slices of $step seconds: GPUs' worth of computing (the sum of each GPU's average).
WITH samples AS (
    SELECT floor((epoch(t.ts) - $start) / $step) AS slice, t.gpu_id, avg(t.utilisation) AS used
    FROM telemetry t
    WHERE t.utilisation IS NOT NULL AND epoch(t.ts) >= $start AND epoch(t.ts) < $end
    GROUP BY 1, 2
)
SELECT $start + s.slice * $step AS moment, sum(s.used) AS gpus
FROM samples s
GROUP BY s.slice
ORDER BY s.slice

-- name: reached
-- The last value of every metric but losses, as rank 0 of each job reported it.
SELECT m.job_id, m.name, arg_max(m.value, m.ts) AS value
FROM metrics m
WHERE list_contains($jobs, m.job_id) AND m.rank = 0 AND m.name NOT LIKE '%loss%' AND m.value IS NOT NULL AND NOT isnan(m.value)
GROUP BY m.job_id, m.name
ORDER BY m.job_id, m.name
