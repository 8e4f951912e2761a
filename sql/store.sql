-- Short queries of transactions of the store, by name; longer ones are in store/.

-- name: adapter_of
-- The adapter that a job has left.
SELECT job_id, data, digest, labels, gone, owner FROM adapters WHERE job_id = $1

-- name: all_live_leases
-- Every lease that has not ended.
SELECT id FROM leases WHERE state <> 'ended' ORDER BY id

-- name: bank_for
-- The adapter bank for a job: $1: owner, $2: recipe, $3: form of the adapter, $4: backbone, NULL: that of the recipe. Newest first.
SELECT job_id, data, digest, labels
FROM adapters
WHERE owner = $1 AND recipe = $2 AND split_part(petl, ' ', 1) = $3 AND gone IS NULL AND ($4::VARCHAR IS NULL OR backbone = $4)
ORDER BY ended_at DESC, job_id DESC

-- name: bank_ids
-- Numbers of the prompts of a bank ($1 to $3).
SELECT id FROM prompts WHERE llm = $1 AND revision = $2 AND tokenizer = $3

-- name: bank_known
-- Those of the texts $4 that a bank ($1 to $3) has.
SELECT text
FROM prompts
WHERE llm = $1 AND revision = $2 AND tokenizer = $3 AND text IN (SELECT unnest($4::VARCHAR[]))

-- name: bank_left_over
-- Prompts of a bank ($1 to $3) without a cluster, or whose medoid no longer is one; with their features.
SELECT p.id, p.features
FROM prompts p
WHERE p.llm = $1 AND p.revision = $2 AND p.tokenizer = $3
  AND (p.medoid IS NULL OR p.medoid NOT IN (SELECT m.id FROM prompts m WHERE m.medoid = m.id))
ORDER BY p.id

-- name: bank_nearest_medoid
-- The medoid of a bank ($1 to $3) that is nearest to the features $4: the cluster C_sim of 4.4.3.3.
SELECT id
FROM prompts
WHERE llm = $1 AND revision = $2 AND tokenizer = $3 AND medoid = id
ORDER BY list_cosine_distance(features, $4::FLOAT[]), id
LIMIT 1

-- name: bank_replaced
-- The prompt nearest to the medoid $1 in its cluster, except that itself: a new prompt replaces it (4.4.3.3).
SELECT p.id
FROM prompts p JOIN prompts m ON m.id = $1
WHERE p.medoid = $1 AND p.id <> $1
ORDER BY list_cosine_distance(p.features, m.features), p.id
LIMIT 1

-- name: bank_size
-- For a bank ($1 to $3): prompts, length of their features (NULL: none), clusters.
SELECT count(*), max(len(features)), count(*) FILTER (medoid = id)
FROM prompts
WHERE llm = $1 AND revision = $2 AND tokenizer = $3

-- name: beginners
-- Of the given jobs those that may begin with an adapter of the bank, and whether they have begun: with it, or for good without.
SELECT j.id, j.owner, j.begins, j.begin_after, j.spec,
       EXISTS (FROM progress p WHERE p.job_id = j.id AND p.checkpoint_step IS NOT NULL) AS begun, b.state, b.step
FROM jobs j LEFT JOIN beginnings b ON b.job_id = j.id
WHERE j.id IN (SELECT unnest($1::BIGINT[])) AND j.begins IS NOT NULL

-- name: beside
-- Jobs on the GPUs of leases while these ran, a row a lease and other lease. `whole`: both had the same GPUs. $1: leases.
SELECT m.lease_id AS lease, o.id AS other, any_value(j.model) AS model, any_value(j.kind) AS kind, any_value(j.priority) AS priority,
       any_value(o.share) AS share, epoch(any_value(o.granted_at)) AS granted_at,
       epoch(any_value(o.started_at)) AS started_at, epoch(any_value(o.ended_at)) AS ended_at,
       count(*) = any_value(l.gpu_count) AND count(*) = any_value(o.gpu_count) AS whole
FROM lease_gpus m JOIN leases l ON l.id = m.lease_id JOIN lease_gpus h ON h.gpu_id = m.gpu_id AND h.lease_id <> m.lease_id
JOIN leases o ON o.id = h.lease_id JOIN jobs j ON j.id = o.job_id
WHERE m.lease_id IN (SELECT unnest($1::BIGINT[])) AND coalesce(o.ended_at > l.started_at, true)
GROUP BY m.lease_id, o.id
ORDER BY m.lease_id, o.id

-- name: clock_reading
-- The reading of the clock by which the tables were written: boot, and seconds by which the time of day was ahead of the boot clock.
SELECT boot_id, ahead FROM clock

-- name: cold_curve
-- First measured values of a metric ($2) of a lesson's jobs ($1) that trained from their backbone, the mean.
SELECT m.step, avg(m.value) AS value
FROM adapters a JOIN metrics m ON m.job_id = a.job_id
WHERE a.lesson = $1 AND NOT a.begun AND NOT EXISTS (FROM beginnings b WHERE b.job_id = a.job_id AND b.state <> 'cold')
  AND m.name = $2 AND m.rank = 0 AND isfinite(m.value) AND m.step > 0
GROUP BY m.step ORDER BY m.step LIMIT 1

-- name: columns
-- Every column of our tables with its type, in order. Of views none: their largest numbers would be computed for nobody.
SELECT table_name, column_name, data_type
FROM duckdb_columns()
WHERE schema_name = 'main' AND NOT internal AND table_name IN (SELECT table_name FROM duckdb_tables() WHERE NOT internal)
ORDER BY table_name, column_index

-- name: controlled_jobs
-- Jobs that a person acts on.
SELECT id, name, owner, state, held, priority, lease_id, place, excluded, begin_from, kind,
       EXISTS (FROM progress p WHERE p.job_id = jobs.id AND p.checkpoint_step IS NOT NULL) AS saved
FROM jobs
WHERE id IN (SELECT unnest($1::BIGINT[]))
ORDER BY id

-- name: counted
-- The last commit that the database knows of, its time, and when the database was made.
SELECT c.number, epoch(c.committed_at), CAST(m.applied AS VARCHAR) FROM commits c, migrations m WHERE m.number = 1

-- name: dependents
-- Jobs not yet ended that wait for one of the given jobs.
SELECT d.job_id, d.needs, d.mode
FROM dependencies d JOIN jobs j ON j.id = d.job_id
WHERE d.needs IN (SELECT unnest($1::BIGINT[])) AND NOT d.met AND j.finished_at IS NULL
ORDER BY d.job_id

-- name: ending_leases
-- Rows for the end of leases: their jobs with their counters. `reported`: whether the progress is this lease's, not that of an attempt before.
SELECT l.id, l.job_id, l.gpu_count, epoch(l.granted_at) AS granted_at, epoch(l.started_at) AS started_at, l.stop_reason, l.profile, l.share, coalesce(j.unmeasured, 0) AS unmeasured,
       j.excluded, j.failures, j.preemptions, j.cancel_requested, j.held, j.run_time, j.attained, j.spec, p.metric, p.step, p.total_steps,
       d.job_id AS joint,
       coalesce(p.updated_at >= l.started_at, false) AND m.seq IS NOT NULL AS reported
FROM leases l JOIN jobs j ON j.id = l.job_id LEFT JOIN progress p ON p.job_id = j.id
LEFT JOIN report_marks m ON m.lease_id = l.id AND m.rank = 0
LEFT JOIN dependencies d ON d.job_id = CAST(l.options ->> 'joint' AS BIGINT) AND d.needs = j.id AND NOT d.met
WHERE l.id IN (SELECT unnest($1::BIGINT[])) AND l.state <> 'ended'
ORDER BY l.id

-- name: excluded_of
-- Runners on which jobs are not tried again, as stored.
SELECT id, excluded FROM jobs WHERE id IN (SELECT unnest($1::BIGINT[]))

-- name: excluding
-- Jobs that have not ended and are not tried on a runner, with all runners on which they are not.
SELECT id, excluded FROM jobs WHERE finished_at IS NULL AND excluded IS NOT NULL AND list_contains(json_keys(excluded), $1)

-- name: fetching_nodes
-- Runners that fetch checkpoints from other hosts.
SELECT id FROM nodes WHERE fetch_at_most IS NOT NULL

-- name: finished_leases
-- Those of the given live leases all of whose workers are gone, with how each of them ended.
SELECT l.id, list(coalesce(w.outcome, 'lost') ORDER BY w.node_id), list(w.exit_code ORDER BY w.node_id),
       list(w.message ORDER BY w.node_id), any_value(l.stop_reason), max(epoch(w.ended_at)), list(w.node_id)
FROM leases l JOIN workers w ON w.lease_id = l.id
WHERE l.id IN (SELECT unnest($1::BIGINT[])) AND l.state <> 'ended'
GROUP BY l.id
HAVING bool_and(w.state = 'exited')
ORDER BY l.id

-- name: forgotten_leases
-- Leases that a runner had taken up and of which it has no trace now.
SELECT w.lease_id
FROM workers w JOIN leases l ON l.id = w.lease_id
WHERE w.node_id = $1 AND w.state IN ('starting', 'running') AND l.state <> 'ended'
  AND w.lease_id NOT IN (SELECT unnest($2::BIGINT[]))
ORDER BY w.lease_id

-- name: free_partners
-- Of jobs ($1), each with one that a plan is to train together with it ($2), those whose other one waits for nothing but GPUs, has not
-- trained, and has not waited for that before, with which nothing came of it.
SELECT j.id, p.id
FROM (SELECT unnest($1::BIGINT[]) AS job, unnest($2::BIGINT[]) AS partner) w JOIN jobs j ON j.id = w.job JOIN jobs p ON p.id = w.partner
WHERE p.state = 'pending' AND p.owner = j.owner AND NOT EXISTS (FROM progress q WHERE q.job_id = p.id AND q.checkpoint_step IS NOT NULL)
  AND NOT EXISTS (FROM dependencies d WHERE d.job_id = p.id AND d.needs = j.id)
  AND NOT EXISTS (FROM beginnings b WHERE b.job_id = p.id AND b.state = 'joint')

-- name: gpu_nodes
-- Runner of each of the given GPUs.
SELECT id, node_id FROM gpus WHERE id IN (SELECT unnest($1::VARCHAR[]))

-- name: gpu_owners
-- Those of the given GPUs that belong to other runners than $2, and whether they are missed there or held by a live lease.
SELECT g.id, g.node_id, n.state, n.host, g.health = 'missing' AS missing,
       EXISTS (FROM lease_gpus h JOIN leases l ON l.id = h.lease_id WHERE h.gpu_id = g.id AND l.state <> 'ended') AS held
FROM gpus g JOIN nodes n ON n.id = g.node_id
WHERE g.id IN (SELECT unnest($1::VARCHAR[])) AND g.node_id <> $2
ORDER BY g.idx, g.id

-- name: idempotency
-- Jobs that were submitted with one of these keys, whoever owns them.
SELECT id, owner, idempotency_key, state, spec, epoch(submitted_at) FROM jobs WHERE idempotency_key IN (SELECT unnest($1::VARCHAR[]))

-- name: job_attempts
-- Leases granted so far to each job, with whose weights it begins, and whether it may begin with an adapter of the bank.
SELECT id, attempts, begin_from, begins IS NOT NULL FROM jobs WHERE id IN (SELECT unnest($1::BIGINT[]))

-- name: job_files_at
-- Bytes that jobs keep in a home, as it was told last.
SELECT job_id, arg_max(bytes, since) AS bytes FROM job_files WHERE place = $1 GROUP BY job_id HAVING arg_max(bytes, since) > 0

-- name: job_states
-- States of jobs by number.
SELECT id, state FROM jobs WHERE id IN (SELECT unnest($1::BIGINT[]))

-- name: jobs_of_bundles
-- Jobs that have not ended whose checkpoints the daemon has by some digests. $1: the digests.
SELECT id FROM jobs WHERE finished_at IS NULL AND list_contains($1::VARCHAR[], bundle)

-- name: keep_more
-- Jobs that keep more of a GPU than is known. $1: jobs, $2: bytes of each.
SELECT j.id, k.bytes AS kept_memory
FROM jobs j JOIN (SELECT unnest($1::BIGINT[]) AS id, unnest($2::BIGINT[]) AS bytes) k ON k.id = j.id
WHERE k.bytes > coalesce(j.kept_memory, 0)

-- name: keep_alike
-- Jobs that wait, and do the same work as some that keep more of a GPU than is known of them. $1: these, $2: bytes of each.
SELECT w.id, max(k.bytes) AS kept_memory
FROM (SELECT unnest($1::BIGINT[]) AS id, unnest($2::BIGINT[]) AS bytes) k
JOIN jobs j ON j.id = k.id
JOIN jobs w ON w.signature = j.signature
WHERE w.finished_at IS NULL AND w.lease_id IS NULL AND k.bytes > coalesce(w.kept_memory, 0) AND w.spec ->> '$.share.memory' = 'replay'
GROUP BY w.id

-- name: kept_memory
-- The most that jobs of a signature have been seen to keep of a GPU while others had the turn, NULL: not known. $1: signature.
SELECT max(kept_memory) FROM jobs WHERE signature = $1

-- name: known_slowdowns
-- Known slow-downs of pairs. $1: models.
SELECT model, beside, gpu_name, kind, slowdown, samples FROM slowdowns WHERE model IN (SELECT unnest($1::VARCHAR[]))

-- name: joint_gains
-- Gain by training together of a user's jobs ($1) on two data sets ($2, $3), whichever came first: the geometric mean, NULL: not measured.
SELECT exp(avg(ln(measured)))
FROM transfers
WHERE owner = $1 AND outcome = 'joint' AND measured > 0 AND ((from_data = $2 AND data = $3) OR (from_data = $3 AND data = $2))

-- name: labels_of_data
-- The kind of labels of a data set ($2), as jobs of a user ($1) told last.
SELECT labels FROM adapters WHERE owner = $1 AND data = $2 ORDER BY ended_at DESC LIMIT 1

-- name: live_leases
-- Those of the given leases that have not ended.
SELECT id, job_id, share, state, stop_reason, epoch(stop_at) AS stop_at, CAST(options ->> 'begin_from' AS BIGINT) AS begin_from,
       options ->> 'begins' AS begins, CAST(options ->> 'joint' AS BIGINT) AS joint
FROM leases
WHERE id IN (SELECT unnest($1::BIGINT[])) AND state <> 'ended'

-- name: live_parts
-- The parts of live leases, by lease and node, with what their reports are measured by.
SELECT w.lease_id, w.node_id, w.state, l.job_id, j.state, l.state, epoch(l.granted_at), epoch(l.started_at), j.total_steps, j.spec ->> '$.stop.metric',
       l.profile, coalesce(l.share, 'exclusive'), j.first_start_at IS NOT NULL
FROM workers w JOIN leases l ON l.id = w.lease_id JOIN jobs j ON j.id = l.job_id
WHERE w.lease_id IN (SELECT unnest($1::BIGINT[])) AND l.state <> 'ended' AND w.state <> 'exited'

-- name: joint_leases
-- Jobs, the jobs with which their leases train first, the specs of both, and whether the other one still waits: one that an older version
-- did not hold back may have been started meanwhile, and then it has trained by itself.
SELECT j.id, p.id, j.spec, p.spec, p.finished_at IS NULL AND p.lease_id IS NULL AND NOT EXISTS (FROM progress q WHERE q.job_id = p.id AND q.checkpoint_step IS NOT NULL) AS waits
FROM jobs j JOIN leases l ON l.id = j.lease_id JOIN jobs p ON p.id = CAST(l.options ->> 'joint' AS BIGINT)
WHERE j.id IN (SELECT unnest($1::BIGINT[])) AND p.owner = j.owner

-- name: losses_in_a_row
-- Lost attempts of each of these jobs since one ended otherwise, their number. $1: jobs.
SELECT o.job_id, count(*)
FROM leases o
LEFT JOIN (SELECT job_id, max(id) AS id FROM leases WHERE job_id IN (SELECT unnest($1::BIGINT[])) AND outcome <> 'lost' GROUP BY job_id) e
    ON e.job_id = o.job_id
WHERE o.job_id IN (SELECT unnest($1::BIGINT[])) AND o.outcome = 'lost' AND o.id > coalesce(e.id, 0)
GROUP BY o.job_id

-- name: marks
-- Last record taken of each rank of the given leases.
SELECT lease_id, rank, seq FROM report_marks WHERE list_contains($1::BIGINT[], lease_id)

-- name: measured_alike
-- Those of the given jobs whose speed is known on GPUs of their pool. $1: jobs.
SELECT j.id
FROM jobs j
WHERE j.id IN (SELECT unnest($1::BIGINT[]))
  AND EXISTS (FROM speeds s JOIN gpus g ON g.name = s.gpu_name WHERE s.signature = j.signature AND g.pool = j.pool)

-- name: measured_gains
-- Outcomes of the beginnings of a user's jobs on other data: data sets, kinds of labels, and steps from the backbone over those taken;
-- NULL: it was undone.
SELECT from_data, data, from_labels, labels, CASE WHEN outcome = 'undone' THEN NULL ELSE measured END AS gain
FROM transfers
WHERE owner = $1 AND NOT same_data AND (outcome = 'undone' OR (outcome IN ('kept', 'begun') AND measured IS NOT NULL))

-- name: newest_policies
-- The version of the policy that is in force in each pool.
SELECT pool, max(id) FROM policy_settings GROUP BY pool

-- name: next_partners
-- For jobs that are granted GPUs those that wait to train their first steps together with them, the first of each.
SELECT j.begin_after, min(j.id)
FROM jobs j JOIN dependencies d ON d.job_id = j.id AND d.needs = j.begin_after
WHERE j.begin_after IN (SELECT unnest($1::BIGINT[])) AND j.begins = 'joint' AND j.state = 'submitted' AND NOT j.held AND NOT d.met
GROUP BY j.begin_after

-- name: node
-- A runner by name.
SELECT id, state, session, host, home, epoch(last_seen) AS last_seen, epoch(leaves_at) AS leaves_at FROM nodes WHERE id = $1

-- name: node_gpus
-- GPUs that a runner has offered.
SELECT id FROM gpus WHERE node_id = $1

-- name: node_leases
-- Leases with a living part on a runner.
SELECT w.lease_id
FROM workers w JOIN leases l ON l.id = w.lease_id
WHERE w.node_id = $1 AND w.state <> 'exited' AND l.state <> 'ended'
ORDER BY w.lease_id

-- name: node_servers
-- Leases with a living part on a runner that have no end of their own, as their jobs serve models.
SELECT w.lease_id
FROM workers w JOIN leases l ON l.id = w.lease_id JOIN jobs j ON j.id = l.job_id
WHERE w.node_id = $1 AND w.state <> 'exited' AND l.state <> 'ended' AND j.kind = 'infer'
ORDER BY w.lease_id

-- name: not_sent_from
-- Jobs whose checkpoints a runner reads, and could not send. $1: the runner.
SELECT j.id FROM jobs j JOIN nodes n ON j.place IN (n.host || ':' || n.home, n.place, n.shared_place)
WHERE n.id = $1 AND j.finished_at IS NULL AND j.not_sent IS NOT NULL

-- name: old_events
-- Number of events older than $1 (s since the epoch), and the last of them. A cut by number, so that the rest is whole;
-- the newest event stays in any case, since numbering goes on from it.
SELECT count(*), max(seq) FROM events WHERE epoch(ts) < $1 AND seq < (SELECT max(seq) FROM events)

-- name: own_adapters
-- Those of the given adapters ($2) that are of the user of a job ($1), nobody else is believed; and not of a half of a training together.
SELECT a.job_id
FROM adapters a JOIN jobs j ON j.owner = a.owner
WHERE j.id = $1 AND a.job_id IN (SELECT unnest($2::BIGINT[])) AND (j.begins IS DISTINCT FROM 'joint' OR a.job_id <> j.begin_after)

-- name: owners_and_specs
-- Owners and specs of jobs, and what is known of their beginnings.
SELECT j.id, j.owner, j.spec, b.state FROM jobs j LEFT JOIN beginnings b ON b.job_id = j.id WHERE j.id IN (SELECT unnest($1::BIGINT[]))

-- name: page_sessions_over
-- Sessions of the page that are over. $1: now (s since the epoch).
SELECT digest FROM page_sessions WHERE epoch(expires_at) <= $1

-- name: part_of_lease
-- Whether a lease of a job had a part on a runner. $1: lease, $2: runner, $3: job.
SELECT w.lease_id FROM workers w JOIN leases l ON l.id = w.lease_id WHERE w.lease_id = $1 AND w.node_id = $2 AND l.job_id = $3

-- name: place_of
-- Host and home of a runner.
SELECT host || ':' || home FROM nodes WHERE id = $1

-- name: places_of_saved
-- Of jobs that have saved on runners: the place of their checkpoint so far, and now, and whether more is known of the one before.
-- $1: jobs, $2: the runner of each, $3: where it says that they lie, '': it does not. A job stays in a place that its runner reads.
SELECT j.id, j.place,
       CASE WHEN s.told <> '' THEN s.told
            WHEN j.place IN (n.host || ':' || n.home, n.place, n.shared_place) THEN j.place
            ELSE coalesce(n.shared_place, n.place, n.host || ':' || n.home) END,
       j.bundle IS NOT NULL OR j.not_sent IS NOT NULL OR j.saved_bytes IS NOT NULL
FROM (SELECT unnest($1::BIGINT[]) AS job, unnest($2::VARCHAR[]) AS node, unnest($3::VARCHAR[]) AS told) s
JOIN jobs j ON j.id = s.job
JOIN nodes n ON n.id = s.node

-- name: pool_backbones
-- Backbones that are kept warm in a pool. $1: pool.
SELECT backbone FROM pool_backbones WHERE pool = $1

-- name: pool_sizes
-- GPUs of each pool that was ever offered, by their bytes (0: not known), counting those of runners that are there; 0: none is there now.
-- A pool that has a policy of its own is one, too, before any runner has joined it.
SELECT g.pool, g.memory, count(*) FILTER (n.state NOT IN ('gone', 'stopped') AND g.health <> 'missing')
FROM gpus g JOIN nodes n ON n.id = g.node_id
GROUP BY g.pool, g.memory
UNION ALL
SELECT DISTINCT pool, 0, 0 FROM policy_settings WHERE pool NOT IN (SELECT pool FROM gpus)

-- name: prices_in_force
-- The newest list of prices.
SELECT what, gpu_name, price FROM prices WHERE ts = (SELECT max(ts) FROM prices)

-- name: progress_of
-- Progress of jobs, as far as there is any.
SELECT job_id, step, total_steps, loss, metric, seconds_per_step, checkpoint_step, peak_memory, epoch(updated_at) AS updated_at
FROM progress
WHERE list_contains($1::BIGINT[], job_id)

-- name: ready
-- Those of the given jobs that have nothing left to wait for: accepted, not held, every dependency met, the weights that it begins with saved.
SELECT j.id
FROM jobs j
WHERE j.id IN (SELECT unnest($1::BIGINT[])) AND j.state = 'submitted' AND NOT j.held
  AND NOT EXISTS (SELECT 1 FROM dependencies d WHERE d.job_id = j.id AND NOT d.met)
  AND (j.begin_from IS NULL OR EXISTS (FROM progress p WHERE p.job_id = j.begin_from AND p.checkpoint_step IS NOT NULL))
ORDER BY j.id

-- name: remove_events
-- Events up to number $1, which have been exported.
DELETE FROM events WHERE seq <= $1

-- name: replica_rest
-- Tasks that wait, of groups of replicas that have finished: those of which some task is completed. $1: tasks whose leases have just ended.
SELECT DISTINCT r.id
FROM jobs j JOIN jobs r ON r.array_id = j.array_id JOIN jobs c ON c.array_id = j.array_id
WHERE j.id IN (SELECT unnest($1::BIGINT[])) AND r.state IN ('submitted', 'pending') AND c.state = 'completed'
ORDER BY r.id

-- name: room_elsewhere
-- Whether the pools of jobs have enough GPUs for them on runners on which they may yet be tried.
SELECT j.id, count(g.id) >= j.gpus_min
FROM jobs j
LEFT JOIN gpus g ON g.pool = j.pool AND g.health <> 'missing'
  AND g.node_id IN (SELECT n.id FROM nodes n
                    WHERE n.state NOT IN ('stopped', 'gone') AND (j.place IS NULL OR j.place IN (n.host || ':' || n.home, n.place, n.shared_place)
                           OR n.fetch_at_most > coalesce(j.saved_bytes, 0)))
  AND NOT list_contains(json_keys(j.excluded), g.node_id)
WHERE j.id IN (SELECT unnest($1::BIGINT[]))
GROUP BY j.id, j.gpus_min

-- name: room_on_gpus
-- Those of the given GPUs on which something may start: their memory, who holds them now, what these keep of it whoever has the turn, and
-- the most that one of them needs beyond that. $1: GPUs.
SELECT g.id, g.memory, count(s.lease_id), count(s.lease_id) FILTER (s.share = 'exclusive'),
       CAST(coalesce(sum(least(s.memory, coalesce(j.kept_memory, s.memory))), 0) AS BIGINT),
       coalesce(max(s.memory - least(s.memory, coalesce(j.kept_memory, s.memory))), 0)
FROM gpus g JOIN nodes n ON n.id = g.node_id LEFT JOIN live_shares s ON s.gpu_id = g.id LEFT JOIN jobs j ON j.id = s.job_id
WHERE g.id IN (SELECT unnest($1::VARCHAR[])) AND g.health = 'ok' AND n.state = 'up'
GROUP BY g.id, g.memory

-- name: schedule_ids
-- Recurring jobs in force, by number: whose they are, and what they are called.
SELECT id, created_by, name FROM schedules WHERE enabled

-- name: schedule_names
-- Recurring jobs in force by user and name.
SELECT id, created_by, name, cron FROM schedules WHERE enabled

-- name: sessions
-- Session in force of each runner.
SELECT id, session FROM nodes

-- name: shared_name
-- The name of a shared directory.
SELECT name, path FROM shared_places WHERE path = $1

-- name: shares_home
-- Runners that have the same home and have not gone.
SELECT o.id FROM nodes n JOIN nodes o ON o.host = n.host AND o.home = n.home AND o.id <> n.id WHERE n.id = $1 AND o.state <> 'gone'

-- name: startable
-- Those of the given jobs that wait for GPUs and may start now, and what they keep of one while others have the turn.
SELECT id, kept_memory FROM jobs WHERE id IN (SELECT unnest($1::BIGINT[])) AND state = 'pending' AND NOT held AND lease_id IS NULL

-- name: still_waiting
-- Those of the given jobs that have not started or ended meanwhile.
SELECT id FROM jobs WHERE id IN (SELECT unnest($1::BIGINT[])) AND state IN ('submitted', 'pending')

-- name: still_wanted
-- Whether the checkpoints of a job that a runner reads are still those of before. $1: job, $2: runner, $3: the last of its leases that ended then.
SELECT j.id
FROM jobs j JOIN nodes n ON j.place IN (n.host || ':' || n.home, n.place, n.shared_place)
WHERE j.id = $1 AND n.id = $2 AND j.finished_at IS NULL AND j.bundle IS NULL
  AND $3 = (SELECT coalesce(max(l.id), 0) FROM leases l WHERE l.job_id = j.id AND l.state = 'ended')
  AND NOT EXISTS (FROM leases l WHERE l.id = j.lease_id AND l.started_at IS NOT NULL)

-- name: superseded_adapters
-- Adapters of which the bank has $1 newer ones of the same user, model, form and data.
SELECT job_id FROM adapters WHERE gone IS NULL
QUALIFY row_number() OVER (PARTITION BY owner, recipe, revision, petl, data ORDER BY ended_at DESC, job_id DESC) > $1

-- name: thin_decisions
-- Decisions older than $1 (s since the epoch) that no lease refers to. The newest stays, since numbering goes on from it, and so does the
-- newest of each pool that says what its policy keeps in mind.
DELETE FROM decisions
WHERE epoch(last_ts) < $1 AND id NOT IN (SELECT decision_id FROM leases WHERE decision_id IS NOT NULL) AND id < (SELECT max(id) FROM decisions)
  AND id NOT IN (SELECT max(id) FROM decisions WHERE memory IS NOT NULL GROUP BY pool)

-- name: thin_metrics
-- Of records older than $1 (s since the epoch) every tenth step, and the last of each lease and name.
DELETE FROM metrics
WHERE epoch(ts) < $1 AND step % 10 <> 0
  AND (lease_id, rank, name, step) NOT IN (SELECT (lease_id, rank, name, max(step)) FROM metrics GROUP BY lease_id, rank, name)

-- name: thin_pipelines
-- Of steps older than $1 (s since the epoch) those in which something was set or refused, one an hour of each pipeline beside them, and its last.
DELETE FROM pipelines
WHERE epoch(ts) < $1
  AND (lease_id, rank, seq) NOT IN (
    SELECT (lease_id, rank, seq) FROM pipelines WHERE epoch(ts) < $1 AND (action <> 0 OR refused IS NOT NULL)
    UNION ALL
    SELECT (lease_id, rank, min(seq)) FROM pipelines WHERE epoch(ts) < $1
    GROUP BY lease_id, rank, pipeline, time_bucket(INTERVAL 1 HOUR, ts)
    UNION ALL
    SELECT (lease_id, rank, max(seq)) FROM pipelines GROUP BY lease_id, rank, pipeline)

-- name: thin_telemetry
-- One sample a minute and GPU of what is older than $1, nothing of what is older than $2 (s since the epoch).
DELETE FROM telemetry
WHERE epoch(ts) < $2
   OR (epoch(ts) < $1 AND (gpu_id, ts) NOT IN (
        SELECT (gpu_id, min(ts)) FROM telemetry WHERE epoch(ts) < $1 GROUP BY gpu_id, time_bucket(INTERVAL 1 MINUTE, ts)))

-- name: token_ids
-- Tokens by number.
SELECT id FROM tokens

-- name: traces
-- All traces, as the writer needs them to tell whether one is there already.
SELECT id, name, format, source, sha256, added_by, jobs, dropped, repaired, recipe FROM traces

-- name: turns_of_leases
-- Last report of the turns of live leases that are switched. $1: leases.
SELECT w.lease_id, w.node_id, w.turn, w.waited
FROM workers w JOIN leases l ON l.id = w.lease_id
WHERE w.lease_id IN (SELECT unnest($1::BIGINT[])) AND l.share = 'switched' AND l.state <> 'ended' AND w.state <> 'exited'
ORDER BY w.lease_id

-- name: views_as_stored
-- The views as the database has them, column by column: what they select, their types, all that is said of them.
SELECT v.view_name, v.sql, v.comment, c.column_name, c.data_type, c.comment
FROM duckdb_views() v
JOIN duckdb_columns() c ON c.table_oid = v.view_oid AND c.table_name = v.view_name AND c.database_name = v.database_name
WHERE v.database_name = current_database() AND NOT v.internal AND NOT v.temporary
ORDER BY v.view_name, c.column_index

-- name: waiting_partners
-- For jobs ($1) those that wait to train their first steps together with them, and whether a plan has chosen that.
SELECT j.begin_after, j.id, j.spec ->> '$.merge' = 'transfer' AS planned
FROM jobs j JOIN dependencies d ON d.job_id = j.id AND d.needs = j.begin_after
WHERE j.begin_after IN (SELECT unnest($1::BIGINT[])) AND j.begins = 'joint' AND j.finished_at IS NULL AND NOT d.met

-- name: weight_sources
-- Jobs with whose weights others would begin: what they train, where they stand, and whether they have saved a checkpoint, and left an adapter.
SELECT j.id, j.spec, j.state, EXISTS (FROM progress p WHERE p.job_id = j.id AND p.checkpoint_step IS NOT NULL) AS saved,
       j.begin_from, j.owner, EXISTS (FROM adapters a WHERE a.job_id = j.id AND a.gone IS NULL) AS adapter_left
FROM jobs j
WHERE j.id IN (SELECT unnest($1::BIGINT[]))

-- name: weight_waiters
-- Jobs that have not begun and are to begin with the weights of one of the given jobs; `saved`: that has saved a checkpoint.
SELECT j.id, j.begin_from, EXISTS (FROM progress p WHERE p.job_id = j.begin_from AND p.checkpoint_step IS NOT NULL) AS saved
FROM jobs j
WHERE j.begin_from IN (SELECT unnest($1::BIGINT[])) AND j.state = 'submitted'
ORDER BY j.id
