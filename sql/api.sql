-- Short queries of the API, by name; longer ones are in api/.

-- name: adapters
-- The adapter bank. $1: owner, NULL: all; $2: also adapters with which no job can begin any more.
SELECT a.job_id, j.name AS job, a.owner, a.recipe, a.backbone, a.revision, a.petl, a.data, a.labels, a.steps, a.reached, a.begun, a.bytes, a.ended_at, a.gone,
       (SELECT count(*) FROM beginnings b WHERE b.source = a.job_id AND b.state IN ('begun', 'kept')) AS helped,
       (SELECT count(*) FROM beginnings b WHERE b.source = a.job_id AND b.state = 'undone') AS undone
FROM adapters a JOIN jobs j ON j.id = a.job_id
WHERE ($1::VARCHAR IS NULL OR a.owner = $1) AND ($2::BOOLEAN OR a.gone IS NULL)
ORDER BY a.job_id DESC

-- name: array_groups
-- Tasks of the array of job $1, counted by state and reason; completed ones are one group.
WITH tasks AS (
    SELECT state, held, gpus, array_index,
           CASE WHEN held AND state = 'submitted' THEN 'held: ''stoker release ' || array_id || ' --array'' lets them go'
                WHEN state <> 'completed' THEN reason END AS why
    FROM jobs_now
    WHERE array_id = (SELECT array_id FROM jobs WHERE id = $1)
)
SELECT state, held, why, count(*) AS tasks, sum(gpus)::BIGINT AS gpus, list(array_index ORDER BY array_index) AS indices
FROM tasks
GROUP BY state, held, why
ORDER BY sum(gpus) = 0, state <> 'failed', state NOT IN ('pending', 'submitted'), count(*) DESC, min(array_index)

-- name: array_rows
-- Tasks of the array of job $1, at most $2: running ones first, then those that failed, wait, and have ended.
SELECT *
FROM jobs_now
WHERE array_id = (SELECT array_id FROM jobs WHERE id = $1)
ORDER BY lease_id IS NULL, state <> 'failed', state NOT IN ('pending', 'submitted'), array_index
LIMIT $2::BIGINT

-- name: array_tasks
-- All tasks of a job's array.
SELECT id FROM jobs WHERE array_id = (SELECT array_id FROM jobs WHERE id = $1) ORDER BY id

-- name: bank_prompts
-- All prompts of a bank ($1 to $3), in the order of their numbers.
SELECT id, text, task, features, medoid, vectors
FROM prompts
WHERE llm = $1 AND revision = $2 AND tokenizer = $3
ORDER BY id

-- name: bank_stamps
-- Banks whose prompts all have a cluster, with a stamp of their content.
SELECT llm, revision, tokenizer, concat_ws('-', count(*), max(id), bit_xor(hash(id, medoid))) AS stamp
FROM prompts
GROUP BY ALL
HAVING count(medoid) = count(*)
ORDER BY ALL

-- name: bank_use
-- Whether a tuning asked the prompt bank for its initial prompt: no row if it did not get that far.
SELECT used, scores, seconds, why_not FROM bank_use WHERE job_id = $1

-- name: beginning
-- The adapter with which a job began.
SELECT b.source, b.state, b.why, coalesce(s.data, 'no longer in the bank') AS source_data
FROM beginnings b LEFT JOIN adapters s ON s.job_id = b.source
WHERE b.job_id = $1

-- name: blockers
-- Jobs that hold GPUs of a pool, with the expected ends of the job and of its lease (NULL: with the job), the soonest first.
SELECT j.id, j.name, l.gpu_count AS gpus, j.state, j.priority, o.est_end, l.expires_at AS lease_end
FROM jobs j JOIN leases l ON l.id = j.lease_id JOIN outlook o ON o.job_id = j.id
WHERE j.pool = $1
ORDER BY least(o.est_end, lease_end) NULLS LAST, j.id
LIMIT 20

-- name: busy_nodes
-- Runners with a live part of a lease.
SELECT DISTINCT w.node_id FROM workers w JOIN leases l ON l.id = w.lease_id WHERE w.state <> 'exited' AND l.state <> 'ended'

-- name: deadlines_ahead
-- Jobs with deadlines still ahead that go before a job: how many wait before it for the same GPUs, and how many hold some. $1: the job.
-- Jobs that are put off to a later time, or given up, do not count.
SELECT count(*) FILTER (j.lease_id IS NULL AND w.position < coalesce(m.position, w.position + 1)
                        AND w.code NOT IN ('planned', 'crowded', 'late', 'outweighed', 'rejected')) AS waiting,
       count(*) FILTER (j.lease_id IS NOT NULL) AS holding
FROM jobs me
LEFT JOIN waiting m ON m.job_id = me.id
JOIN jobs j ON j.pool = me.pool AND j.id <> me.id
LEFT JOIN waiting w ON w.job_id = j.id
WHERE me.id = $1 AND j.finished_at IS NULL AND j.demand <> 'best-effort' AND j.deadline > make_timestamp(epoch_us(now()))

-- name: dependencies
-- Jobs that a job waits for.
SELECT d.needs, j.name, j.state, d.mode, d.met FROM dependencies d JOIN jobs j ON j.id = d.needs WHERE d.job_id = $1 ORDER BY d.needs

-- name: duration_of
-- Seconds that a job takes, as far as is known. $1: the job.
SELECT duration FROM work WHERE job_id = $1

-- name: events
-- Newest events of a job.
SELECT * FROM events WHERE job_id = $1 ORDER BY seq DESC LIMIT 50

-- name: ever_joined
-- A GPU that was ever offered to a pool.
SELECT id FROM gpus WHERE pool = $1 LIMIT 1

-- name: expected
-- Expected step at which a job that stops at a metric reaches it, while it has not ended: never at a step that it has passed.
SELECT j.spec ->> '$.stop.metric' AS metric, (j.spec ->> '$.stop.target')::DOUBLE AS target, coalesce(p.total_steps, j.total_steps) AS maximum,
       greatest(e.iterations, coalesce(p.step, 0)) AS iterations, greatest(e.low, coalesce(p.step, 0)) AS low,
       greatest(e.high, coalesce(p.step, 0)) AS high, e.probability, e.at_step, e.points, e.updated_at
FROM iteration_estimates e
JOIN jobs j ON j.id = e.job_id
LEFT JOIN progress p ON p.job_id = j.id
WHERE e.job_id = $1 AND j.finished_at IS NULL

-- name: fenced_nodes
-- Silent runners whose jobs stop by themselves: seconds of silence after which the last job's grace is over ($1: grace of specs without
-- one). Without runners that were never heard after they registered: they may not know that they must stop jobs.
SELECT n.id, n.fence_after + max(CASE WHEN l.id IS NULL THEN 0 ELSE coalesce(CAST(j.spec ->> '$.grace' AS DOUBLE), $1) END)
FROM nodes n
LEFT JOIN workers w ON w.node_id = n.id AND w.state <> 'exited'
LEFT JOIN leases l ON l.id = w.lease_id AND l.state <> 'ended'
LEFT JOIN jobs j ON j.id = l.job_id
WHERE n.fence_after IS NOT NULL AND n.last_seen > n.joined_at AND n.state IN ('suspect', 'draining', 'drained')
GROUP BY n.id, n.fence_after

-- name: fleet
-- Runners with the session in force, their state, and whether they were told to leave.
SELECT id, session, state, leaving FROM nodes

-- name: fleet_silent
-- Runners that are draining or drained and silent, as policy/nodes has them.
SELECT id FROM nodes WHERE state IN ('draining', 'drained') AND last_seen < make_timestamp(epoch_us(now())) - INTERVAL 1 MINUTE

-- name: gpu_samples
-- The newest sample of each GPU, of the last minute.
SELECT gpu_id, node_id, utilisation, memory_used
FROM telemetry
WHERE ts > make_timestamp(epoch_us(now())) - INTERVAL 1 MINUTE
QUALIFY row_number() OVER (PARTITION BY gpu_id ORDER BY ts DESC) = 1
ORDER BY gpu_id

-- name: job
-- One job, whole.
SELECT * FROM jobs WHERE id = $1

-- name: job_counts
-- Jobs by state.
SELECT state, count(*) FROM jobs GROUP BY state ORDER BY state

-- name: job_decisions
-- Newest decisions that started, stopped or put off a job.
WITH mine AS (SELECT coalesce(list(id), []) AS leases FROM leases WHERE job_id = $1)
SELECT d.ts, d.policy, h.code, d.outcome, d.plan, m.leases
FROM decisions d CROSS JOIN mine m LEFT JOIN policy_history h ON h.id = d.config_id
WHERE json_contains(d.plan -> '$.starts[*].job', CAST($1 AS VARCHAR)::JSON)
   OR json_exists(d.plan, '$.deferred."' || $1 || '"')
   OR list_has_any(CAST(d.plan -> '$.stops[*].lease' AS BIGINT[]), m.leases)
ORDER BY d.id DESC
LIMIT 10

-- name: job_name
-- Name of a job.
SELECT name FROM jobs WHERE id = $1

-- name: kept_files
-- Size of the jobs' directories in each home, as its runners reported it last.
WITH newest AS (SELECT place, job_id, arg_max(bytes, since) AS bytes FROM job_files GROUP BY place, job_id)
SELECT place, count(*) AS jobs, sum(bytes)::BIGINT AS bytes FROM newest WHERE bytes > 0 GROUP BY place ORDER BY place

-- name: kept_rows
-- Tables that are thinned: the number of rows and the time of the first.
SELECT 'telemetry' AS what, count(*) AS rows, min(ts) AS oldest FROM telemetry
UNION ALL
SELECT 'metrics', count(*), min(ts) FROM metrics
UNION ALL
SELECT 'pipelines', count(*), min(ts) FROM pipelines
UNION ALL
SELECT 'decisions', count(*), min(ts) FROM decisions
UNION ALL
SELECT 'events', count(*), min(ts) FROM events

-- name: known_pools
-- Pools that have or had GPUs, have jobs that have not ended, or a policy that was set.
SELECT pool FROM gpus
UNION SELECT pool FROM jobs WHERE finished_at IS NULL
UNION SELECT pool FROM policy_settings
ORDER BY pool

-- name: last_start
-- The last start of a job: whether by a fork, and why not.
SELECT warm, cold_because FROM leases WHERE job_id = $1 AND warm IS NOT NULL ORDER BY id DESC LIMIT 1

-- name: lease_outcomes
-- Ended leases by outcome.
SELECT coalesce(outcome, 'unknown'), count(*) FROM leases WHERE state = 'ended' GROUP BY 1 ORDER BY 1

-- name: leaving
-- Runners that will hand their nodes back: those of the job's lease if it has one, else all of its pool. $1: job.
SELECT DISTINCT n.id, epoch(n.leaves_at)
FROM jobs j
JOIN gpus g ON g.pool = j.pool
JOIN nodes n ON n.id = g.node_id AND n.leaves_at IS NOT NULL AND n.state = 'up'
WHERE j.id = $1
  AND (j.lease_id IS NULL OR EXISTS (FROM workers w WHERE w.lease_id = j.lease_id AND w.node_id = n.id))
ORDER BY n.id

-- name: live_matching
-- Jobs that have not ended, of the user $1, in the states $2, with a name, or an array's name, like $3, and with the labels $4; null: any.
SELECT id
FROM jobs
WHERE finished_at IS NULL AND owner = $1
  AND ($2::VARCHAR[] IS NULL OR list_contains($2::VARCHAR[], state))
  AND ($3::VARCHAR IS NULL OR name LIKE $3 ESCAPE '\' OR name LIKE $3 || '[%' ESCAPE '\')
  AND ($4::JSON IS NULL OR json_contains(labels, $4::JSON))
ORDER BY id

-- name: live_nodes
-- Runners that can be told to leave.
SELECT id FROM nodes WHERE state IN ('up', 'draining', 'drained') ORDER BY id

-- name: log_dirs
-- Run directories of a job's leases with their runners, newest first; of a gang first that of the first node, which has rank 0.
SELECT w.lease_id AS lease, w.run_dir, bool_and(w.state = 'exited') OVER (PARTITION BY w.lease_id) AS ended,
       w.node_id AS node, n.host, n.home, n.boot_id, n.pid, n.state
FROM workers w
JOIN leases l ON l.id = w.lease_id
JOIN nodes n ON n.id = w.node_id
WHERE l.job_id = $1 AND w.run_dir IS NOT NULL
ORDER BY w.lease_id DESC, w.node_id

-- name: memory_limit
-- The memory limit of the whole database, in bytes.
SELECT parse_formatted_bytes(current_setting('memory_limit'))

-- name: metrics
-- Reports of a job's rank 0 after a place, oldest first. $1: job, $2: names, null: all; $3, $4: lease and number of the last known
-- record, $5: most rows.
SELECT lease_id, seq, step, name, value, ts
FROM metrics
WHERE job_id = $1 AND rank = 0
  AND ($2::VARCHAR[] IS NULL OR list_contains($2::VARCHAR[], name))
  AND (lease_id > $3::BIGINT OR (lease_id = $3::BIGINT AND seq > $4::BIGINT))
ORDER BY lease_id, seq, name
LIMIT $5::BIGINT

-- name: named_bundles
-- Digests of files that hosts may still fetch from the daemon: checkpoints, and copies of code, kept for retries within a month.
SELECT bundle FROM jobs WHERE finished_at IS NULL AND bundle IS NOT NULL
UNION
SELECT substr(v.snapshot, 8) FROM provenance v JOIN jobs j ON j.id = v.job_id
WHERE (j.finished_at IS NULL OR j.finished_at > make_timestamp(epoch_us(now())) - INTERVAL 30 DAY) AND v.snapshot LIKE 'sha256:%'

-- name: node_processes
-- Processes of a runner that were alive when last heard of: its agent and its supervisors.
SELECT pid, pid_started, boot_id FROM nodes WHERE id = $1
UNION ALL
SELECT pid, pid_started, boot_id FROM workers WHERE node_id = $1 AND state <> 'exited' AND pid IS NOT NULL

-- name: node_states
-- States of runners.
SELECT id, state FROM nodes

-- name: nodes_of_lease
-- Runners on which a live lease is. $1: the lease.
SELECT w.node_id FROM workers w WHERE w.lease_id = $1 AND w.state <> 'exited'

-- name: notices
-- Events of the daemon itself in the last day, which may explain strange figures, newest first.
SELECT ts, kind, reason FROM events
WHERE kind IN ('clock.set', 'daemon.back') AND ts > make_timestamp(epoch_us(now())) - INTERVAL 1 DAY
ORDER BY seq DESC
LIMIT 3

-- name: outlook
-- Expected end of a job that has not ended, and the risk of its deadline.
SELECT epoch(est_end) AS est_end, epoch(soonest_end) AS soonest_end, epoch(est_start) AS est_start, remaining, given_up, deadline_risk
FROM outlook
WHERE job_id = $1

-- name: page_sessions
-- Sessions of the page that are accepted, the newest first.
SELECT s.digest, coalesce(t.name, s.name) AS name, coalesce(t.role, s.role) AS role, s.token_id, s.port, epoch(s.expires_at) AS expires_at
FROM page_sessions s LEFT JOIN tokens t ON t.id = s.token_id
WHERE NOT coalesce(t.revoked, false) AND s.expires_at > make_timestamp(epoch_us(now()))
ORDER BY s.created_at DESC, s.digest

-- name: pilots
-- Runners that batch jobs have started and that have not left.
SELECT p.node_id, n.session, p.cluster, p.job, p.host, p.seen
FROM pilots p JOIN nodes n ON n.id = p.node_id
WHERE p.engine = $1 AND n.state NOT IN ('stopped', 'gone')
ORDER BY p.node_id

-- name: pipeline_decisions
-- The newest $4 steps of pipeline $3 of rank $2 of job $1 in which something was set or refused, newest first.
SELECT ts, lease_id, seq, any_value(controller) AS controller, any_value(throughput) AS throughput, any_value(demand) AS demand,
       any_value(reward) AS reward, any_value(why) AS why, any_value(refused) AS refused,
       list({'stage': stage, 'unit': unit, 'action': action, 'value': value, 'wanted': wanted} ORDER BY position)
           FILTER (action <> 0 OR wanted <> value) AS changes
FROM pipelines
WHERE job_id = $1 AND rank = $2 AND pipeline = $3
GROUP BY ts, lease_id, seq
HAVING bool_or(coalesce(action, 0) <> 0) OR any_value(refused) IS NOT NULL
ORDER BY lease_id DESC, seq DESC
LIMIT $4

-- name: pipeline_now
-- The stages of a job's pipelines, as their tuners reported them last.
SELECT * EXCLUDE (job_id, job, owner, state) FROM pipelines_now WHERE job_id = $1 ORDER BY rank, pipeline, position, unit

-- name: policies
-- The policy in force of each pool.
SELECT * FROM policy_history QUALIFY row_number() OVER (PARTITION BY pool ORDER BY id DESC) = 1 ORDER BY pool

-- name: policy_history
-- Settings of policies, newest first.
SELECT * FROM policy_history ORDER BY id DESC LIMIT 100

-- name: pool_use
-- GPUs of each pool and how many of them are held.
SELECT g.pool, count(*) AS gpus, count(h.gpu_id) AS busy
FROM gpus g JOIN nodes n ON n.id = g.node_id AND n.state NOT IN ('gone', 'stopped')
LEFT JOIN (SELECT DISTINCT gpu_id FROM live_shares) h ON h.gpu_id = g.id
WHERE g.health <> 'missing'
GROUP BY g.pool
ORDER BY g.pool

-- name: pool_warm
-- The backbones that people keep warm in a pool, and their state on each runner. $1: pool.
SELECT p.backbone, g.node_id AS node, coalesce(s.state, 'not loaded') AS state, s.recipe, s.memory, s.note, p.set_by, p.ts
FROM pool_backbones p
LEFT JOIN (SELECT DISTINCT g.pool, g.node_id FROM gpus g JOIN nodes n ON n.id = g.node_id WHERE n.state NOT IN ('stopped', 'gone')) g
       ON g.pool = p.pool
LEFT JOIN fork_servers s ON s.node_id = g.node_id AND s.backbone = p.backbone
WHERE p.pool = $1
ORDER BY p.backbone, g.node_id

-- name: progress
-- Progress of a job.
SELECT * EXCLUDE (job_id) FROM progress WHERE job_id = $1

-- name: prompt_shown
-- A prompt, its cluster, and its distance from the medoid.
SELECT p.id, p.llm, p.revision, p.tokenizer, p.text, p.source, p.task, p.ts, p.added_by, len(p.features) AS features, p.medoid,
       len(p.vectors) // len(p.features) AS tokens,
       m.text AS representative, list_cosine_distance(p.features, m.features) AS distance,
       CASE WHEN p.medoid IS NOT NULL THEN (SELECT count(*) FROM prompts c WHERE c.medoid = p.medoid) END AS cluster_size
FROM prompts p LEFT JOIN prompts m ON m.id = p.medoid
WHERE p.id = $1

-- name: prompt_texts
-- Texts in the banks of the LLM $1.
SELECT llm, revision, tokenizer, list(text ORDER BY id) AS texts FROM prompts WHERE llm = $1 GROUP BY ALL ORDER BY ALL

-- name: prompts_found
-- Prompts of the LLM $1 (NULL: any) that hold all words $2 (lower case) in their text or task, the newest first; with $3 (NULL: none) those of the bank of that
-- prompt, the nearest to it first. $4: how many at most.
SELECT p.id, p.llm, p.revision, p.tokenizer, p.text, p.source, p.task, p.medoid, p.ts, p.added_by,
       list_cosine_distance(p.features, n.features) AS distance
FROM prompts p LEFT JOIN prompts n ON n.id = $3 AND (n.llm, n.revision, n.tokenizer) = (p.llm, p.revision, p.tokenizer)
WHERE ($1::VARCHAR IS NULL OR p.llm = $1) AND ($3::BIGINT IS NULL OR n.id IS NOT NULL)
  AND list_bool_and(list_transform($2::VARCHAR[], lambda word: contains(lower(concat_ws(' ', p.text, p.task)), word))) IS NOT FALSE
ORDER BY distance, p.id DESC
LIMIT $4

-- name: provenance
-- Where a job came from.
SELECT * EXCLUDE (job_id) FROM provenance WHERE job_id = $1

-- name: readable
-- Stoker's tables and views, which ad-hoc SQL may read (except sqlguard.HIDDEN).
SELECT table_name FROM duckdb_tables() WHERE database_name = current_database() AND schema_name = 'main' AND NOT internal AND NOT temporary
UNION ALL
SELECT view_name FROM duckdb_views() WHERE database_name = current_database() AND schema_name = 'main' AND NOT internal AND NOT temporary

-- name: recent_names
-- Names of the newest jobs.
SELECT name FROM jobs ORDER BY id DESC LIMIT 1000

-- name: replicas
-- A job's group of replicas: members that train, progress, lost time, silent runners. $1: job; no row: it is in no group.
WITH silent AS (
    SELECT g.lease_id, s.id AS node FROM live_shares g JOIN silent_runners s ON s.id = g.node
)
SELECT any_value(r.least) AS least, any_value(r.most) AS most, any_value(r.global_batch) AS global_batch,
       count(*) FILTER (r.lease_id IS NOT NULL) AS leases, count(*) FILTER (r.lease_id IS NOT NULL AND r.members > 0 AND s.node IS NULL) AS training,
       coalesce(list(s.node ORDER BY s.node) FILTER (s.node IS NOT NULL), []) AS silent,
       max(r.step) AS step, coalesce(max(r.samples), 0) AS samples, coalesce(max(r.lost), 0.0) AS lost, coalesce(max(r.gaps), 0) AS gaps,
       any_value(r.members) FILTER (r.job_id = $1) AS members
FROM replicas_now r LEFT JOIN silent s ON s.lease_id = r.lease_id
WHERE r.array_id = (SELECT coalesce(array_id, id) FROM jobs WHERE id = $1)
HAVING count(*) > 0

-- name: room_to_share
-- The largest node of a pool: GPUs, and memory of its largest GPU (bytes, 0: not known); and GPUs that jobs share now. $1: pool.
WITH nodes AS (
    SELECT count(*) AS gpus, max(memory) AS memory FROM gpus WHERE pool = $1 AND health <> 'missing' GROUP BY node_id
),
shared AS (
    SELECT s.gpu_id FROM live_shares s JOIN gpus g ON g.id = s.gpu_id WHERE g.pool = $1 GROUP BY s.gpu_id HAVING count(*) > 1
)
SELECT coalesce(max(gpus), 0), coalesce(max(memory), 0), (SELECT count(*) FROM shared) FROM nodes

-- name: runners
-- Runners with their GPUs and how many of them are held.
SELECT n.id, n.host, n.state, n.version, n.last_seen, n.pid, n.session, n.leaves_at, count(g.id) AS gpus, count(h.gpu_id) AS busy
FROM nodes n
LEFT JOIN gpus g ON g.node_id = n.id AND g.health <> 'missing'
LEFT JOIN (SELECT DISTINCT gpu_id FROM live_shares) h ON h.gpu_id = g.id
GROUP BY ALL
ORDER BY n.id

-- name: identity
-- The time at which the database was made, by which runners distinguish it from others.
SELECT epoch_us(applied)::VARCHAR FROM migrations WHERE number = 1

-- name: schedules
-- Recurring jobs in force.
SELECT id, name, cron, enabled, created_by, created_at, last_at FROM schedules WHERE enabled ORDER BY id

-- name: schema_version
-- Number of the last migration.
SELECT max(number) FROM migrations

-- name: servers
-- A job ($1), or the tasks of its array ($2), and where each serves: run_dir is NULL if it does not serve now.
SELECT j.id AS job, j.name, j.kind, j.state, j.spec ->> '$.serve' AS serve, l.id AS lease, epoch(l.started_at) AS since, w.node_id AS node, w.run_dir
FROM jobs j
LEFT JOIN leases l ON l.id = j.lease_id AND l.state = 'running'
LEFT JOIN workers w ON w.lease_id = l.id AND w.state = 'running'
WHERE j.id = $1 OR ($2 AND j.array_id = $1)
ORDER BY w.run_dir IS NULL, j.id

-- name: serving
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

-- name: shared_input
-- The group with which a job shares its input, the savings in its newest attempt, and the group's jobs on its hosts.
SELECT j.input, n.made, n.found, n.again, n.bytes, n.saved,
       (SELECT list(DISTINCT o.id ORDER BY o.id)
        FROM jobs o
        JOIN leases l ON l.id = o.lease_id AND l.state = 'running'
        JOIN workers v ON v.lease_id = l.id
        JOIN workers w ON w.node_id = v.node_id AND w.lease_id = j.lease_id
        WHERE o.id <> j.id AND o.owner = j.owner AND o.input = j.input) AS beside
FROM jobs j LEFT JOIN shared_input_now n ON n.job_id = j.id
WHERE j.id = $1 AND j.input IS NOT NULL

-- name: shared_place
-- The name of a shared directory, and whether a runner has found or made its probe there. $1: path.
SELECT name, EXISTS (FROM nodes n WHERE n.shared_place = s.name) FROM shared_places s WHERE path = $1

-- name: shared_with
-- The jobs that share GPUs with a job now, and their number; if they take turns, its turn and its seconds of waiting. $1: job.
SELECT o.job_id AS job, any_value(j.name) AS name, any_value(o.share) AS share, count(*) AS gpus, any_value(own.turn) AS turn,
       any_value(own.waited_for_turns) AS waited_for_turns
FROM live_shares own JOIN live_shares o ON o.gpu_id = own.gpu_id AND o.job_id <> own.job_id JOIN jobs j ON j.id = o.job_id
WHERE own.job_id = $1
GROUP BY o.job_id
ORDER BY o.job_id

-- name: silent
-- Silent runners on which a job holds GPUs; and since when its progress is unknown.
SELECT s.id AS node, s.host, s.last_seen, max(p.updated_at) AS reported_at
FROM jobs j
JOIN live_shares g ON g.lease_id = j.lease_id
JOIN silent_runners s ON s.id = g.node
LEFT JOIN progress p ON p.job_id = j.id
WHERE j.id = $1
GROUP BY s.id, s.host, s.last_seen
ORDER BY s.id

-- name: sim_models
-- Use of a pool's GPUs by models that have them alone: shares of 1, NULL: not measured. $1: pool.
SELECT s.model, max(s.utilisation) AS utilisation, max(CASE WHEN g.memory > 0 THEN s.peak_memory / g.memory ELSE 0.0 END) AS memory
FROM speeds s JOIN (SELECT name, min(memory) AS memory FROM gpus WHERE pool = $1 GROUP BY name) g ON g.name = s.gpu_name
GROUP BY s.model
ORDER BY s.model

-- name: sim_nodes
-- Number of GPUs that each node of a pool offers. $1: pool.
SELECT count(*) AS gpus
FROM gpus g JOIN nodes n ON n.id = g.node_id
WHERE g.pool = $1 AND n.state <> 'gone' AND g.health <> 'missing'
GROUP BY n.id
ORDER BY n.id

-- name: sim_pools
-- Pools with a history: the default one, and all that have had GPUs or jobs.
SELECT 'default' AS pool UNION SELECT pool FROM gpus UNION SELECT pool FROM jobs ORDER BY pool

-- name: sim_runs
-- Simulations, the newest first. $1: of this study, NULL: of all; $2: at most so many.
SELECT *
FROM sim_runs
WHERE $1::VARCHAR IS NULL OR study = $1
ORDER BY id DESC
LIMIT $2::BIGINT

-- name: sim_slowdowns
-- Slow-downs of models beside others on GPUs of a pool, by the kind of sharing. $1: pool.
SELECT model, beside, kind, max(slowdown) AS slowdown
FROM slowdowns
WHERE gpu_name IN (SELECT name FROM gpus WHERE pool = $1)
GROUP BY model, beside, kind
ORDER BY model, beside, kind

-- name: tiers
-- Deadline steps of a job.
SELECT deadline, reward FROM tiers WHERE job_id = $1 ORDER BY deadline

-- name: to_retry
-- The data to submit the jobs $1 again.
SELECT id, name, owner, state, spec, submitted_at
FROM jobs
WHERE id IN (SELECT unnest($1::BIGINT[]))
ORDER BY id

-- name: token_list
-- Tokens, without their secrets' digests.
SELECT id, name, role, created_at, revoked FROM tokens ORDER BY id

-- name: tokens
-- Tokens that are accepted.
SELECT digest, name, role, id FROM tokens WHERE NOT revoked

-- name: top_gpus
-- Every GPU as it is now, except those whose runner has left.
SELECT * FROM gpus_now WHERE state <> 'offline' ORDER BY node, idx

-- name: top_queue
-- The queue, in the order in which it is served.
SELECT * FROM queue ORDER BY position NULLS LAST, id LIMIT 200

-- name: top_running
-- Jobs that hold GPUs.
SELECT * FROM jobs_now WHERE state IN ('profiling', 'assigned', 'starting', 'running', 'suspending') ORDER BY id

-- name: trace_jobs
-- Jobs of trace $1 from position $2 on, $3 of them at most.
SELECT key, submitted, duration, gpus_min, gpus_max, user_name, pool, model, batch_size, iterations, status, priority, estimate, demand,
       deadlines, rewards, stop, scale, raw
FROM trace_jobs
WHERE trace_id = $1 AND job >= $2 AND job < $2 + $3
ORDER BY job

-- name: traces
-- Workload traces in the order in which they were added, with the name of each or of one ($1, NULL: all).
SELECT id, name, format, source, sha256, added_at, added_by, starts_at, jobs, dropped, repaired, recipe
FROM traces
WHERE $1::VARCHAR IS NULL OR name = $1
ORDER BY id

-- name: tunings
-- Searches for configurations, the newest first. $1: how many.
SELECT * FROM tunings ORDER BY id DESC LIMIT $1

-- name: waiting
-- Why a job waits, and when it should start.
SELECT w.* EXCLUDE (job_id) REPLACE (o.est_start AS est_start)
FROM waiting w JOIN outlook o ON o.job_id = w.job_id
WHERE w.job_id = $1

-- name: warm_now
-- Warm fork servers of present runners.
SELECT w.* FROM warm_now w JOIN nodes n ON n.id = w.node WHERE n.state NOT IN ('stopped', 'gone') ORDER BY w.node, w.recipe, w.backbone

-- name: worker_processes
-- Supervisors of a runner that were alive when last heard of. $1: the runner.
SELECT pid, pid_started, boot_id FROM workers WHERE node_id = $1 AND state <> 'exited' AND pid IS NOT NULL
