-- Short queries of policies and their ticks, by name; longer ones stand in policy/.

-- name: adapter_places
-- Where jobs have left their adapters: the place of their checkpoints, and the run directory of their newest lease.
SELECT j.id, j.place,
       (SELECT w.run_dir FROM leases s JOIN workers w ON w.lease_id = s.id
        WHERE s.job_id = j.id AND NOT coalesce(s.profile, false) AND w.run_dir IS NOT NULL
        ORDER BY s.id DESC, w.node_id LIMIT 1) AS run_dir
FROM jobs j
WHERE j.id IN (SELECT unnest($1::BIGINT[]))

-- name: announced_deadlines
-- Jobs whose deadline was announced to be at risk.
SELECT DISTINCT job_id FROM events WHERE kind = 'job.deadline-at-risk'

-- name: auto_tuning
-- Pools that tune themselves, and how.
SELECT pool, enabled, period, objective, set_by, ts FROM auto_tuning QUALIFY row_number() OVER (PARTITION BY pool ORDER BY id DESC) = 1

-- name: backoffs_over
-- Pools with jobs whose back-off has ended between $1 and $2 (s since the epoch).
SELECT DISTINCT pool FROM jobs WHERE state = 'pending' AND epoch(not_before) > $1 AND epoch(not_before) <= $2

-- name: bank_of_signatures
-- Jobs whose adapters are in the bank, with their signatures, the newest last.
SELECT j.signature, a.job_id AS job
FROM adapters a JOIN jobs j ON j.id = a.job_id
WHERE a.gone IS NULL AND j.signature IS NOT NULL
ORDER BY a.job_id

-- name: causal_model
-- Samples and graph of a pool's causal model. $1: pool, $2: policy, $3: objective, $4: version.
SELECT learnt FROM causal_models WHERE pool = $1 AND policy = $2 AND objective = $3 AND version = $4

-- name: copying_replicas
-- Of jobs those that are replicas of a group that trains, as far as their own checkpoints or farther: they copy its state, wherever those lie.
-- $1: the jobs.
SELECT j.id
FROM jobs j LEFT JOIN progress p ON p.job_id = j.id
WHERE list_contains($1::BIGINT[], j.id) AND j.spec ->> '$.replicas.max' IS NOT NULL
  AND EXISTS (SELECT 1 FROM jobs o JOIN metrics m ON m.lease_id = o.lease_id
              WHERE o.array_id = j.array_id AND o.id <> j.id AND m.name = 'members' AND m.step >= coalesce(p.checkpoint_step, 0))

-- name: fetched
-- Of jobs whose checkpoints are to go to another host: where they lie, the digest by which the daemon has them, why they were not sent, the step, their bytes.
-- $1: the jobs.
SELECT j.id, j.place, j.bundle, j.not_sent, p.checkpoint_step, coalesce(j.saved_bytes, 0)
FROM jobs j LEFT JOIN progress p ON p.job_id = j.id
WHERE list_contains($1::BIGINT[], j.id)

-- name: finished_times
-- Run times of the newest completed jobs of a pool, and their submitters' estimates (NULL: none). $1: pool, $2: how many.
SELECT model, run_time AS seconds, est_duration AS estimate
FROM jobs
WHERE pool = $1 AND state = 'completed' AND run_time > 0
ORDER BY finished_at DESC, id DESC
LIMIT $2

-- name: foretold
-- Places of a pool's waiting jobs in the queue, and their expected starts (s since the epoch). $1: pool.
SELECT w.job_id, w.position, epoch(w.est_start)
FROM waiting w JOIN jobs j ON j.id = w.job_id
WHERE j.pool = $1 AND (w.position IS NOT NULL OR w.est_start IS NOT NULL)

-- name: fork_servers
-- Fork servers of backbones: runner, backbone, state, and since when (s since the epoch).
SELECT node_id, backbone, state, epoch(since) FROM fork_servers WHERE backbone <> ''

-- name: gains_of_signatures
-- Gains of beginnings, by the jobs' signatures: steps from the backbone over steps with the adapter, the geometric mean; of pairs that
-- were not undone more often than kept.
SELECT s.signature AS source, j.signature AS job, exp(avg(ln(t.measured)) FILTER (t.outcome <> 'undone')) AS gain
FROM transfers t JOIN jobs s ON s.id = t.from_job JOIN jobs j ON j.id = t.job_id
WHERE NOT t.same_data AND t.outcome <> 'joint' AND (t.measured > 0 OR t.outcome = 'undone')
GROUP BY s.signature, j.signature
HAVING count(*) FILTER (t.outcome = 'undone') <= count(t.measured) FILTER (t.outcome <> 'undone')

-- name: gpus
-- GPUs of a pool, also those that are not there now. $1: pool.
SELECT id, node_id, idx, hash(name) AS product, memory, health, warm, warm_since FROM gpus WHERE pool = $1

-- name: held
-- GPUs of leases. $1: the leases.
SELECT lease_id, gpu_id FROM lease_gpus WHERE list_contains($1::BIGINT[], lease_id)

-- name: is_measured
-- Whether the speed of a signature has been measured on GPUs that a pool has. $1: signature, $2: pool.
SELECT EXISTS (FROM speeds s JOIN gpus g ON g.name = s.gpu_name WHERE s.signature = $1 AND g.pool = $2)

-- name: iterations
-- Iterations that jobs which stop at a metric are expected to need. $1: the jobs.
SELECT job_id, iterations, spread FROM iteration_estimates WHERE list_contains($1::BIGINT[], job_id)

-- name: jobs
-- Jobs of a pool that have not ended, as they stand. The View works out its moment's values in NumPy, and so are the
-- joins with other tables: in SQL they cost more to plan than to compute. $1: pool.
SELECT id, submitted_at, state = 'pending' AS pending, state = 'suspending' AS stopping, held, not_before,
       gpus_min, gpus_max, priority, demand <> 'best-effort' AS timed, demand = 'strict' AS strict, deadline,
       attained, run_time, preemptions, attempts, hash(owner) AS owner, hash(model) AS model, hash(model, gpus_min) AS model_on_gpus,
       array_id, array_cap::DOUBLE AS array_cap, lease_id, signature, first_start_at, unmeasured,
       total_steps::DOUBLE AS total_steps, est_duration, gpu_memory, kept_memory::DOUBLE AS kept_memory,
       kind, backbone, share, excluded, place, saved_bytes::DOUBLE AS saved_bytes, bundle IS NOT NULL AS handed_on, not_sent, begin_from::DOUBLE AS begin_from,
       coalesce(begins = 'auto', false) AS begins, CASE WHEN input IS NOT NULL THEN hash(owner, input) END AS input
FROM jobs
WHERE pool = $1 AND finished_at IS NULL

-- name: kept_backbones
-- Runners and the backbones that fork servers of theirs are to have: by a policy, or by hand.
SELECT node_id, warm AS backbone FROM gpus WHERE warm IS NOT NULL
UNION SELECT g.node_id, p.backbone FROM gpus g JOIN pool_backbones p ON p.pool = g.pool WHERE g.health <> 'missing'
ORDER BY ALL

-- name: known_work
-- Where what is known of the work of a pool's jobs comes from, and whose end has been ordered. $1: pool.
SELECT j.id, j.model, j.array_id, w.ahead IS NOT NULL AS by_steps, w.duration AS whole, j.est_duration IS NOT NULL AS said, j.cancel_requested
FROM jobs j JOIN work w ON w.job_id = j.id
WHERE j.pool = $1 AND j.finished_at IS NULL

-- name: last_tuning
-- Time of the decision on a pool's newest search, and its number. $1: pool.
SELECT epoch(max(ts)) AS ts, max(id) AS id FROM tunings WHERE pool = $1 AND outcome <> 'dry-run'

-- name: leases
-- Leases. $1: which.
SELECT id, granted_at, started_at, expires_at, gpu_count, profile, share <> 'exclusive' AS shared FROM leases WHERE list_contains($1::BIGINT[], id)

-- name: lease_sources
-- Of leases that begin with the weights of another job: the place of its checkpoints, the run directory of its newest lease (of a gang that
-- of its first node), and for a server its spec; and the spec of the job with which they train first. $1: leases.
SELECT l.id, (SELECT s.place FROM jobs s WHERE s.id = CAST(l.options ->> 'begin_from' AS BIGINT)) AS place,
       (SELECT w.run_dir FROM leases s JOIN workers w ON w.lease_id = s.id
        WHERE s.job_id = CAST(l.options ->> 'begin_from' AS BIGINT) AND NOT coalesce(s.profile, false) AND w.run_dir IS NOT NULL
        ORDER BY s.id DESC, w.node_id LIMIT 1) AS run_dir,
       (SELECT s.spec FROM jobs s WHERE s.id = CAST(l.options ->> 'begin_from' AS BIGINT) AND j.kind = 'infer') AS trained_as,
       (SELECT p.spec FROM jobs p WHERE p.id = CAST(l.options ->> 'joint' AS BIGINT)) AS partner
FROM leases l JOIN jobs j ON j.id = l.job_id
WHERE l.id IN (SELECT unnest($1::BIGINT[]))

-- name: lease_specs
-- Contents of leases: the specs and owners of their jobs, the directories of their copied trees, the memory that they need of each GPU,
-- with whose weights they begin, adapters with which they may, and with whom they train first. $1: leases.
SELECT l.id, j.spec, j.owner, v.snapshot, coalesce(CAST(l.options ->> 'memory' AS BIGINT), k.gpu_memory, 0) AS gpu_memory,
       CAST(l.options ->> 'begin_from' AS BIGINT) AS source, l.options ->> 'begins' AS begins, CAST(l.options ->> 'joint' AS BIGINT) AS joint
FROM leases l JOIN jobs j ON j.id = l.job_id LEFT JOIN provenance v ON v.job_id = j.id LEFT JOIN work k ON k.job_id = j.id
WHERE l.id IN (SELECT unnest($1::BIGINT[]))

-- name: leaving
-- Every runner, whether it was told to leave, whether it is to start nothing more, and whether it hands its node back.
SELECT id, leaving, state IN ('draining', 'drained'), leaving AND leaves_at IS NOT NULL AND state IN ('up', 'draining', 'drained') FROM nodes

-- name: metric_curve
-- The values of a metric that a job has reported, by step; where it trained a step again, the newer one. $1: job, $2: metric.
SELECT step, last(value ORDER BY lease_id, seq) AS value
FROM metrics
WHERE job_id = $1 AND name = $2 AND rank = 0 AND isfinite(value)
GROUP BY step
ORDER BY step

-- name: model_work
-- Measurements of a model's ended jobs on so many GPUs: seconds a step, and of the whole job. $1: model, $2: GPUs.
SELECT min(seconds_per_step) AS pace, avg(duration) AS duration FROM profiles WHERE model = $1 AND gpu_count = $2

-- name: nodes
-- Every node, its state, the places whose checkpoints it reads, a line each, the bytes of a checkpoint that it fetches at most,
-- and when it hands itself back. A draining runner keeps its state however silent it is, so its last report tells, as in silent_runners.
SELECT id, CASE WHEN state IN ('draining', 'drained') AND last_seen < make_timestamp(epoch_us(now())) - INTERVAL 1 MINUTE
                THEN 'silent' ELSE state END AS state,
       concat_ws(chr(10), host || ':' || home, place, shared_place) AS places, fetch_at_most::DOUBLE AS fetch_at_most, epoch(leaves_at) AS leaves FROM nodes

-- name: open_deadlines
-- How the last deadlines of jobs that have not ended stand, where that is known: when it is, when the job should end, and when it would if it
-- went on now.
SELECT job_id, epoch(deadline) AS at, epoch(est_end) AS est_end, epoch(soonest_end) AS soonest_end, remaining, given_up, deadline_risk
FROM outlook
WHERE deadline_risk IN ('safe', 'at risk', 'missed')
ORDER BY job_id

-- name: overheads
-- Costs of suspensions: pool, code of the model as in policy/jobs, GPUs, seconds, and how many were measured.
SELECT pool, hash(model), gpu_count, overhead, suspensions FROM overheads

-- name: places_of_jobs
-- Where the checkpoints of jobs lie; jobs without one have no row. $1: the jobs.
SELECT id, place FROM jobs WHERE list_contains($1::BIGINT[], id) AND place IS NOT NULL

-- name: pools
-- Pools that runners offer.
SELECT DISTINCT pool FROM gpus WHERE health <> 'missing' ORDER BY pool

-- name: profiles
-- Measurements of ended jobs, by model and GPUs as in policy/jobs.
SELECT hash(model, gpu_count) AS model_on_gpus, seconds_per_step, duration, peak_memory::DOUBLE AS peak_memory FROM profiles

-- name: profiling_runs
-- Median length of a pool's newest profiling runs that measured enough, from when their worker lived. $1: pool.
SELECT median(seconds)
FROM (
    SELECT greatest(epoch(l.ended_at - l.started_at), 0) AS seconds
    FROM leases l JOIN jobs j ON j.id = l.job_id
    WHERE j.pool = $1 AND l.profile AND l.outcome = 'profiled' AND l.started_at IS NOT NULL
    ORDER BY l.id DESC
    LIMIT 20
)

-- name: progress
-- Progress of jobs. $1: the jobs.
SELECT job_id, step, total_steps::DOUBLE AS total_steps, seconds_per_step FROM progress WHERE list_contains($1::BIGINT[], job_id)

-- name: promised_deadlines
-- Jobs whose deadline was told as safe.
SELECT job_id FROM deadline_promises

-- name: recent_preemptions
-- Recent victims of a pool with their winners, and the last time of each pair. $1: pool, $2: since (s since the epoch).
SELECT l.job_id, l.stop_for, epoch(max(l.stop_at))
FROM leases l JOIN jobs j ON j.id = l.job_id
WHERE j.pool = $1 AND l.stop_reason = 'preempted' AND l.stop_for IS NOT NULL AND epoch(l.stop_at) > $2
GROUP BY l.job_id, l.stop_for

-- name: saved_replicas
-- Of groups of replicas none of which trains as far as that: the tasks that have a checkpoint, and its step; whether they have a GPU. $1: arrays.
WITH saved AS (
    SELECT j.array_id, j.id, j.name, p.checkpoint_step AS step, j.lease_id, max(p.checkpoint_step) OVER (PARTITION BY j.array_id) AS newest
    FROM jobs j JOIN progress p ON p.job_id = j.id
    WHERE list_contains($1::BIGINT[], j.array_id) AND j.finished_at IS NULL AND p.checkpoint_step > 0
)
SELECT s.array_id, s.id, s.name, s.step, s.lease_id IS NOT NULL
FROM saved s
WHERE NOT EXISTS (SELECT 1 FROM jobs o JOIN metrics m ON m.lease_id = o.lease_id
                  WHERE o.array_id = s.array_id AND m.name = 'members' AND m.step >= s.newest)
ORDER BY s.array_id, s.id

-- name: saved_steps
-- Steps of the newest checkpoints of jobs. $1: the jobs.
SELECT job_id, checkpoint_step FROM progress WHERE list_contains($1::BIGINT[], job_id) AND checkpoint_step IS NOT NULL

-- name: saves_nothing
-- Of jobs those that cannot be stopped without the loss of all they did: commands without a checkpoint whose like, or themselves, have run,
-- and never saved one. $1: the jobs.
WITH asked AS (SELECT id, model FROM jobs WHERE list_contains($1::BIGINT[], id) AND place IS NULL AND kind <> 'infer' AND spec ->> '$.command' IS NOT NULL)
SELECT a.id
FROM asked a
JOIN jobs o ON o.model = a.model
LEFT JOIN progress p ON p.job_id = o.id
GROUP BY a.id
HAVING bool_or(o.run_time > 0) AND NOT bool_or(o.place IS NOT NULL OR p.checkpoint_step IS NOT NULL)

-- name: schedules
-- Recurring jobs in force with what they submit, and when they last did.
SELECT id, cron, spec, created_by, epoch(created_at), epoch(last_at) FROM schedules WHERE enabled ORDER BY id

-- name: slowdowns
-- Slow-downs of models packed beside others, with the product of the GPUs as in policy/gpus. $1: models.
SELECT model, beside, hash(gpu_name) AS product, slowdown
FROM slowdowns
WHERE kind = 'packed' AND list_contains($1::VARCHAR[], model) AND list_contains($1::VARCHAR[], beside)

-- name: speeds
-- Speeds measured of jobs, with the product of the GPUs as in policy/gpus. $1: signatures.
SELECT signature, hash(gpu_name) AS product, model, gang, compute, within_node, across_nodes,
       peak_memory::DOUBLE AS peak_memory, utilisation
FROM speeds
WHERE list_contains($1::BIGINT[], signature)

-- name: taken_back
-- Configurations that harmed, and were taken back. $1: pool, $2: policy, $3: since when, s since the epoch.
SELECT after FROM tunings WHERE pool = $1 AND policy = $2 AND outcome = 'rolled back' AND epoch(ts) + period >= $3

-- name: taken_of_period
-- Mean seconds of a period that the jobs which were at hand at its beginning took of it. $1: pool, $2: begin, $3: end (s since the epoch).
SELECT avg(least(coalesce(epoch(finished_at), $3), $3) - $2) AS taken
FROM jobs
WHERE pool = $1 AND epoch(submitted_at) <= $2 AND (finished_at IS NULL OR epoch(finished_at) > $2)

-- name: tiers
-- Deadline steps of a pool's jobs that have not ended, earliest first. $1: pool.
SELECT t.job_id, epoch(t.deadline) AS deadline, t.reward
FROM tiers t JOIN jobs j ON j.id = t.job_id
WHERE j.pool = $1 AND j.finished_at IS NULL
ORDER BY t.job_id, t.deadline

-- name: tried_before
-- Configurations of a policy that were replaced by another one, the oldest first. $1: pool, $2: policy.
SELECT before FROM tunings WHERE pool = $1 AND policy = $2 AND outcome IN ('applied', 'measured', 'rolled back') ORDER BY id

-- name: tuning_history
-- Jobs of a pool that were submitted since a moment, for what is to be expected: of servers nothing follows. $1: pool, $2: s since the epoch.
SELECT epoch(submitted_at) AS submitted, gpus_min AS gpus, CASE WHEN finished_at IS NOT NULL THEN run_time END AS duration,
       epoch(finished_at) AS ended, owner, model, id
FROM jobs
WHERE pool = $1 AND kind <> 'infer' AND submitted_at >= make_timestamp(CAST($2 * 1000000 AS BIGINT)) AND (finished_at IS NULL OR run_time > 0)
ORDER BY submitted_at, id

-- name: tuning_jobs
-- Number of jobs of `tuning_history`. $1: pool, $2: s since the epoch.
SELECT count(*)
FROM jobs
WHERE pool = $1 AND submitted_at >= make_timestamp(CAST($2 * 1000000 AS BIGINT)) AND (finished_at IS NULL OR run_time > 0)

-- name: unmeasured_tunings
-- Searches that were applied, whose period is over and which have not been measured, the oldest first. $1: now, s since the epoch.
SELECT id, pool, policy, epoch(ts) AS ts, before, after, period, expected, asked_by, why,
       id = max(id) FILTER (outcome NOT IN ('dry-run', 'kept')) OVER (PARTITION BY pool) AS newest
FROM tunings
QUALIFY outcome = 'applied' AND epoch(ts) + period <= $1
ORDER BY id

-- name: waiting
-- Stored reasons of a pool's waiting jobs. $1: pool.
SELECT w.job_id, w.code, w.reason FROM waiting w JOIN jobs j ON j.id = w.job_id WHERE j.pool = $1

-- name: watched
-- Jobs that run and stop at a metric: its name and target, whether it is to rise, the maximum of steps, the last step, and the step of
-- the last estimate (NULL: none). A maximum of 0, as a script may report one, leaves nothing to estimate.
SELECT j.id, j.spec ->> '$.stop.metric', (j.spec ->> '$.stop.target')::DOUBLE, coalesce(j.spec ->> '$.stop.mode', 'max') AS mode,
       coalesce(p.total_steps, j.total_steps) AS most, p.step, e.at_step
FROM jobs j
JOIN progress p ON p.job_id = j.id
LEFT JOIN iteration_estimates e ON e.job_id = j.id
WHERE j.finished_at IS NULL AND j.spec ->> '$.stop.metric' IS NOT NULL AND most >= 1
ORDER BY j.id

-- name: replicas_of
-- Of arrays those that are groups of replicas. $1: arrays.
SELECT DISTINCT array_id FROM jobs WHERE list_contains($1::BIGINT[], array_id) AND spec ->> '$.replicas.max' IS NOT NULL
