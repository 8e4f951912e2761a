-- A plausible history for tests of views and queries: getvariable('jobs') jobs submitted one every 30 s until now, on 2 nodes of
-- 4 GPUs. The newest 8 single-GPU jobs run, those after them wait, the others have ended.
SET VARIABLE origin = make_timestamp(epoch_us(now())) - to_seconds(30 * getvariable('jobs'));
SET VARIABLE running_from = getvariable('jobs') * 9 // 10;

INSERT INTO nodes
SELECT 'node' || n, 'host' || n, 'boot', 100 + n, 1.0, '/var/lib/stoker', '0.1', 1, 'up', '10.0.0.' || n, getvariable('origin'),
       make_timestamp(epoch_us(now())), false, 'home-' || n, 'shared', '/mnt/shared', CASE WHEN n = 1 THEN getvariable('origin') + INTERVAL 1 DAY END, 1 << 30, 300
FROM range(2) r(n);
INSERT INTO gpus
SELECT 'GPU-' || g, 'node' || g // 4, g % 4, 'default', 'cuda', 'A100', 80000000000, CASE WHEN g = 7 THEN 'dirty' ELSE 'ok' END,
       CASE WHEN g = 7 THEN 'pid 7 holds 2 GiB' END, CASE WHEN g < 2 THEN 'minilm' END, CASE WHEN g < 2 THEN getvariable('origin') END
FROM range(8) r(g);
INSERT INTO pilots VALUES ('node1', 'slurm', 'cluster', '17', 'node1', true);
INSERT INTO pool_backbones VALUES ('default', 'minilm', 'ann', getvariable('origin'));
INSERT INTO fork_servers
SELECT 'node' || n, r, b, s, CASE WHEN s <> 'failed' THEN 200 + n END, getvariable('origin'), NULL, CASE WHEN s = 'ready' THEN 400000000 END,
       CASE WHEN s = 'failed' THEN '1 threads were started at import, which a fork would lose' END
FROM range(2) q(n), (VALUES ('text-classifier', 'minilm', 'ready'), ('toy', '', 'loading'), ('dlrm', '', 'failed')) v(r, b, s);
INSERT INTO policy_settings VALUES (1, 'default', 'fifo', 1.0, '{}', 'ann', getvariable('origin'));

INSERT INTO jobs
SELECT i, 'job-' || i, 'finetune', 'default', 'user' || i % 5, state, submitted + INTERVAL 40 SECOND, 'because', i % 3, false, 1, 2, 0,
       CASE WHEN i % 4 = 0 THEN 'soft' WHEN i % 4 = 1 THEN 'strict' ELSE 'best-effort' END,
       CASE WHEN i % 4 < 2 THEN submitted + INTERVAL 5 MINUTE END, 'text/' || i % 3, 100, NULL, submitted, submitted,
       CASE WHEN state NOT IN ('pending', 'submitted') THEN submitted + INTERVAL 40 SECOND END,
       CASE WHEN ended THEN submitted + INTERVAL 100 SECOND + to_seconds(i % 400) END, NULL, CASE WHEN ended THEN 1 ELSE 0 END, 0, 0, false,
       CASE WHEN state = 'running' THEN i END, CASE WHEN ended THEN 60 + i % 400 ELSE 0 END, CASE WHEN ended THEN 60 + i % 400 ELSE 0 END,
       CASE WHEN ended THEN state END, CASE WHEN state = 'failed' THEN 1 WHEN ended THEN 0 END,
       CASE WHEN i % 20 < 5 THEN i - i % 20 END, CASE WHEN i % 20 < 5 THEN i % 20 END, NULL, NULL, NULL,
       '{"team": "vision"}', '{"name": "job-' || i || '", "recipe": "text"}', NULL, 0,
       CASE WHEN i % 5 = 0 THEN 'packed' END, CASE WHEN i % 3 = 0 THEN 'minilm' END, CASE WHEN i % 7 = 6 THEN i - 1 END,
       CASE WHEN i % 11 = 0 THEN '{"node1": "workdir: there is no directory /work on this node"}' END,
       CASE WHEN i % 4 = 0 THEN 'home-0' END, CASE WHEN i % 4 = 0 THEN 1000 * i END, CASE WHEN i % 8 = 0 THEN sha256(i::VARCHAR) END,
       CASE WHEN i % 8 = 4 THEN 'its checkpoint is damaged' END, CASE WHEN i % 6 = 5 THEN 'auto' WHEN i % 12 = 4 THEN 'job' END,
       CASE WHEN i % 12 = 4 THEN i - 1 END, CASE WHEN i % 9 = 0 THEN 500000000 END, CASE WHEN i % 10 = 0 THEN 'images' END
FROM (
    SELECT i, getvariable('origin') + to_seconds(30 * i) AS submitted, i < getvariable('running_from') AS ended,
           CASE WHEN i >= getvariable('running_from') + 7 THEN 'pending' WHEN i >= getvariable('running_from') THEN 'running'
                WHEN i % 11 = 3 THEN 'failed' WHEN i % 13 = 5 THEN 'cancelled' ELSE 'completed' END AS state
    FROM range(1, getvariable('jobs') + 1) r(i)
);

INSERT INTO leases
SELECT id, id, 1, 1, CASE WHEN finished_at IS NULL THEN 'running' ELSE 'ended' END, first_start_at - INTERVAL 2 SECOND, first_start_at, NULL,
       CASE WHEN id % 17 = 0 THEN finished_at END, CASE WHEN id % 17 = 0 AND finished_at IS NOT NULL THEN 'preempted' END,
       CASE WHEN id % 17 = 0 AND finished_at IS NOT NULL THEN id + 1 END, finished_at,
       CASE WHEN finished_at IS NOT NULL THEN outcome END, CASE WHEN state = 'failed' THEN 'loss is NaN: lower the learning rate' END,
       exit_code, 'fifo', 1, false, CASE WHEN id % 5 = 0 THEN 'packed' ELSE 'exclusive' END, NULL,
       id % 3 = 0, CASE WHEN id % 3 > 0 THEN 'its server is loading' END
FROM jobs WHERE first_start_at IS NOT NULL;
INSERT INTO lease_gpus SELECT id, 'GPU-' || id % 7, 'node' || id % 7 // 4 FROM leases;
INSERT INTO workers (lease_id, node_id, state, pid, pid_started, boot_id, run_dir, started_at, ended_at, exit_code, outcome, message)
SELECT l.id, g.node_id, CASE WHEN l.ended_at IS NULL THEN 'running' ELSE 'exited' END, 1000 + l.id, 1.0, 'boot', '/var/lib/stoker/run-' || l.id,
       l.started_at, l.ended_at, l.exit_code, l.outcome, l.message
FROM leases l JOIN lease_gpus g ON g.lease_id = l.id;
INSERT INTO tiers SELECT id, deadline - INTERVAL 2 MINUTE, 2.0 FROM jobs WHERE demand = 'soft' UNION ALL SELECT id, deadline, 1.0 FROM jobs WHERE deadline IS NOT NULL;
INSERT INTO progress
SELECT id, CASE WHEN state = 'completed' THEN 100 ELSE id % 90 END, 100, 1.0 / (1 + id % 90), 0.8, 0.7, 50, 1000000000, coalesce(finished_at, make_timestamp(epoch_us(now())))
FROM jobs WHERE first_start_at IS NOT NULL;
INSERT INTO waiting
SELECT id, 'resources', 'waits for a free GPU', row_number() OVER (ORDER BY id), submitted_at + INTERVAL 1 HOUR, submitted_at FROM jobs WHERE state = 'pending';
INSERT INTO provenance SELECT id, '["stoker", "submit"]', '/home/ann', 'abc123', NULL, NULL, '0.1' FROM jobs;
INSERT INTO iteration_estimates
SELECT id, 80, 120, 100, 200, 0.9, 0.2, 8, 0.004, submitted_at + INTERVAL 1 MINUTE FROM jobs WHERE state = 'running';
INSERT INTO speeds VALUES (7, 'A100', 'text/0', 4, 0.5, 0.02, NULL, 1000000000, 3, getvariable('origin'), 0.4);
INSERT INTO profiles VALUES ('text/0', 'A100', 1, 0.7, 120, 1000000000, 9, getvariable('origin'));

INSERT INTO events
SELECT row_number() OVER (ORDER BY ts, rank, job_id), ts, 'job.state', job_id, lease_id, NULL, before, after, actor, reason, NULL
FROM (
    SELECT submitted_at AS ts, 1 AS rank, id AS job_id, NULL AS lease_id, NULL AS before, 'submitted' AS after, owner AS actor, 'submitted' AS reason FROM jobs
    UNION ALL SELECT submitted_at, 2, id, NULL, 'submitted', 'pending', 'daemon', 'ready' FROM jobs
    UNION ALL SELECT granted_at, 3, job_id, id, 'pending', 'assigned', 'policy:fifo', 'first in line' FROM leases
    UNION ALL SELECT started_at, 4, job_id, id, 'assigned', 'running', 'runner:node0', 'its worker lives' FROM leases
    UNION ALL SELECT j.finished_at, 5, j.id, l.id, 'running', j.state, 'runner:node0', 'it ended' FROM jobs j JOIN leases l ON l.job_id = j.id WHERE j.finished_at IS NOT NULL
);
INSERT INTO decisions
SELECT i, 'default', 'fifo', 1, getvariable('origin') + to_seconds(60 * i), getvariable('origin') + to_seconds(60 * i + 50), 10, 20, 'ok', NULL, 0.002,
       0.001, 0.003, '{}', CASE WHEN i = 2 THEN 'invalid' ELSE 'applied' END, CASE WHEN i = 2 THEN 'GPU given twice' END,
       CASE WHEN i = 1 THEN '{"asked": 1}' END
FROM range(1, getvariable('jobs') // 2 + 1) r(i);
INSERT INTO metrics
SELECT l.job_id, l.id, 0, s, l.started_at + to_seconds(s), s * 10, name, CASE name WHEN 'loss' THEN 2.0 / (1 + s) ELSE 1 - 1.0 / (1 + s) END
FROM leases l, range(1, 6) r(s), (VALUES ('loss'), ('accuracy')) v(name);
-- It had no time to ask the bank of prompts.
INSERT INTO metrics
SELECT job_id, id, 0, 6, started_at, 0, name, value
FROM leases, (VALUES ('bank_used', 0.0), ('bank_scores', 2.0), ('bank_longest', 110.0), ('bank_budget', 60.0)) v(name, value)
WHERE id = 1;
-- Another one answers requests.
UPDATE jobs SET kind = 'infer' WHERE id = 2;
INSERT INTO metrics
SELECT job_id, id, 0, 7, started_at, 0, name, value
FROM leases, (VALUES ('minute', epoch(getvariable('origin')) // 60), ('p50', 0.002), ('p95', 0.004), ('p99', 0.005), ('requests', 40.0)) v(name, value)
WHERE job_id = 2;
-- A third one shares its input.
INSERT INTO metrics
SELECT job_id, id, 0, 8, started_at, 0, name, value
FROM leases, (VALUES ('input_made', 20.0), ('input_found', 40.0), ('input_again', 2.0), ('input_bytes', 4e6), ('input_saved', 3.5)) v(name, value)
WHERE job_id = 3;
UPDATE jobs SET spec = '{"name": "job-3", "recipe": "text", "share": {"input": "sweep"}}' WHERE id = 3;
-- A fourth one is a replica.
INSERT INTO metrics
SELECT job_id, id, 0, 9, started_at, 30, name, value
FROM leases, (VALUES ('members', 2.0), ('samples', 1920.0), ('lost_seconds', 1.5), ('gaps', 1.0)) v(name, value)
WHERE job_id = 4;
UPDATE jobs SET spec = '{"name": "job-4", "recipe": "text", "replicas": {"min": 1, "max": 4, "global_batch": 64}}' WHERE id = 4;
-- Job 1 had been suspended once before, and had reported a step 12 s after its next lease was granted.
INSERT INTO leases BY NAME
SELECT 0 AS id, 1 AS job_id, 0 AS attempt, 1 AS gpu_count, 'ended' AS state, granted_at - INTERVAL 60 SECOND AS granted_at,
       granted_at - INTERVAL 50 SECOND AS started_at, granted_at - INTERVAL 20 SECOND AS stop_at, 'expired' AS stop_reason,
       granted_at - INTERVAL 16 SECOND AS ended_at, 'preempted' AS outcome, 'fifo' AS policy
FROM leases WHERE id = 1;
INSERT INTO telemetry
SELECT make_timestamp(epoch_us(now())) - to_seconds(10 * s), 'GPU-' || g, 'node' || g // 4, l.id, CASE WHEN g = 3 THEN 0.0 ELSE 0.9 END, 20000000000, 250, 60
FROM range(500) r(s), range(8) q(g)
LEFT JOIN lease_gpus h ON h.gpu_id = 'GPU-' || g AND h.lease_id IN (SELECT id FROM leases WHERE state = 'running')
LEFT JOIN leases l ON l.id = h.lease_id;

INSERT INTO traces VALUES (1, 'week', 'philly-csv', 'week.csv', 'abc', getvariable('origin'), 'ann', NULL, 50, '{}', '{}', NULL);
INSERT INTO trace_jobs BY NAME
SELECT 1 AS trace_id, i AS job, 'job-' || i AS key, 10.0 * i AS submitted, 60.0 + i AS duration, 1 AS gpus_min, 1 AS gpus_max, 0 AS priority,
       'best-effort' AS demand, [] AS deadlines, [] AS rewards
FROM range(50) r(i);
INSERT INTO sim_runs BY NAME
SELECT id, 'compare' AS study, 'week' AS trace, 1 AS trace_id, 'abc' AS trace_sha256, policy, '{}' AS config, '1x8' AS nodes, '{}' AS options, 0 AS seed, '0.1' AS version,
       getvariable('origin') AS ran_at, 'ann' AS ran_by, 'completed' AS status, 50 AS jobs, 50 AS finished, 0 AS rejected, 0 AS dropped,
       100.0 * id AS jct_avg, 300.0 AS jct_p99, 20.0 AS wait_avg, 0.9 AS fair_share, 0.8 AS utilisation, id AS preemptions, 0.0 AS lost_gpu_time,
       100 AS events, 100 AS decisions, 0.1 AS plan_seconds, 0.2 AS wall_seconds
FROM (VALUES (1, 'srtf'), (2, 'fifo')) v(id, policy);
INSERT INTO sim_jobs BY NAME
SELECT run_id, i AS job, 10.0 * i AS started, 10.0 * i + 60 + i * run_id AS ended, 60.0 + i AS run_time, 60.0 + i AS gpu_time, 0.0 AS lost,
       0 AS preemptions, false AS rejected, 10.0 * i AS submitted, 60.0 + i * run_id AS jct, 1 AS gpus
FROM range(50) r(i), (VALUES (1), (2)) v(run_id);
INSERT INTO sim_usage SELECT run_id, 10.0 * i, 8, 8, i FROM range(50) r(i), (VALUES (1), (2)) v(run_id);
-- The pipelines of the running jobs: a tuner that moved two workers to the stage that limits it, and was refused a third one.
INSERT INTO pipelines BY NAME
SELECT l.job_id, l.id AS lease_id, 0 AS rank, 100 + s AS seq, l.started_at + to_seconds(10 * s) AS ts, 'pipeline' AS pipeline, stage, position,
       CASE stage WHEN 'udf' THEN 2 + s ELSE 1 END AS workers, unit, CASE stage WHEN 'udf' THEN 2 + s WHEN 'prefetch' THEN 64 ELSE 1 END AS value,
       CASE WHEN stage = 'udf' AND s > 0 THEN 1 ELSE 0 END AS action, CASE stage WHEN 'udf' THEN 3 + s WHEN 'prefetch' THEN 64 ELSE 1 END AS wanted,
       latency, latency AS cpu, CASE WHEN latency IS NULL THEN NULL ELSE 0 END AS wait, 80.0 AS items, starved, 0.05 AS blocked, 3 AS queue,
       3000000 AS queue_bytes, 'rate' AS controller, 40.0 + 20 * s AS throughput, 100.0 AS demand, 30.0 + 15 * s AS reward, 4.0 AS cpus,
       3.0 AS cpu_used, 4000000000 AS memory_used, 16000000000 AS memory_total, 'udf takes 80 % of the time' AS why,
       CASE s WHEN 2 THEN 'udf: a fifth worker would leave 1 % of the memory' END AS refused
FROM leases l, range(3) r(s),
     (VALUES ('read', 0, 'workers', 0.002, 0.6), ('udf', 1, 'workers', 0.02, 0.0), ('prefetch', 2, 'MiB', NULL, 0.0)) v(stage, position, unit, latency, starved)
WHERE l.state = 'running' OR l.id = 1;
-- What the first fine-tunings left, and with which of it others began.
INSERT INTO adapters BY NAME
SELECT id AS job_id, owner, 'text-classifier' AS recipe, 'minilm' AS backbone, 'abc' AS revision, 'lora of rank 8 on query, value' AS petl,
       'set-' || id % 3 AS data, 'd' || id % 3 AS digest, CASE WHEN id % 3 = 0 THEN 'ham, spam' ELSE 'negative, positive' END AS labels,
       id % 3 AS lesson, 20 + id % 7 AS steps, true AS reached, id % 6 = 5 AS begun, 200000 AS bytes, finished_at AS ended_at,
       CASE WHEN id % 5 = 0 THEN 'newer ones of the same data are kept' END AS gone
FROM jobs WHERE state = 'completed' AND id < 60;
INSERT INTO beginnings BY NAME
SELECT j.id AS job_id, CASE WHEN j.id > 6 THEN (SELECT min(a.job_id) FROM adapters a) END AS source, 'set-' || j.id % 3 AS data,
       'negative, positive' AS labels, j.id % 4 = 0 AS same_data, CASE WHEN j.id % 2 = 1 THEN 1.7 END AS expected,
       CASE WHEN j.id <= 6 THEN 'cold' WHEN j.id % 5 = 0 THEN 'undone' ELSE 'kept' END AS state, 5 AS step, 5 AS cost, 'as measured' AS why,
       j.finished_at AS decided_at
FROM jobs j WHERE j.begins IS NOT NULL AND j.state = 'completed' AND j.id < 60;
