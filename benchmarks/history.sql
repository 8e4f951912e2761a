-- A history for idle.py: getvariable('jobs') completed jobs, one every 30 s until now, each with what the daemon leaves of such a job.
SET VARIABLE origin = make_timestamp(epoch_us(now())) - to_seconds(30 * getvariable('jobs'));

INSERT INTO jobs (id, name, kind, pool, owner, state, state_since, state_reason, priority, held, gpus_min, gpus_max, gpu_memory, demand, model,
                  total_steps, submitted_at, eligible_at, first_start_at, finished_at, attempts, failures, preemptions, cancel_requested,
                  run_time, attained, outcome, exit_code, labels, spec)
SELECT i, 'job-' || i, 'finetune', 'default', 'user' || i % 20, 'completed', submitted + INTERVAL 200 SECOND, 'completed', i % 3, false, 1, 1, 0,
       'best-effort', 'text-classifier/' || i % 5, 100, submitted, submitted, submitted + INTERVAL 40 SECOND, submitted + INTERVAL 200 SECOND,
       1, 0, 0, false, 160, 160, 'completed', 0, '{"team": "vision"}',
       '{"name": "job-' || i || '", "kind": "finetune", "recipe": "text-classifier", "params": {"dataset": "trec", "seed": ' || i || '}}'
FROM (SELECT i, getvariable('origin') + to_seconds(30 * i) AS submitted FROM range(1, getvariable('jobs') + 1) r(i));

INSERT INTO leases (id, job_id, attempt, gpu_count, state, granted_at, started_at, ended_at, outcome, exit_code, policy, decision_id)
SELECT id, id, 1, 1, 'ended', first_start_at - INTERVAL 1 SECOND, first_start_at, finished_at, 'completed', 0, 'priority', id FROM jobs;
INSERT INTO lease_gpus SELECT id, 'GPU-node' || id % 16 || '-0', 'node' || id % 16 FROM leases;
INSERT INTO workers (lease_id, node_id, state, pid, pid_started, boot_id, run_dir, started_at, ended_at, exit_code, outcome)
SELECT id, 'node' || id % 16, 'exited', 1000 + id, 1.0, 'boot', '/var/lib/stoker/jobs/' || job_id, started_at, ended_at, 0, 'completed' FROM leases;
INSERT INTO report_marks SELECT id, 0, 100 FROM leases;
INSERT INTO progress (job_id, step, total_steps, loss, seconds_per_step, checkpoint_step, updated_at)
SELECT id, 100, 100, 0.1, 1.6, 100, finished_at FROM jobs;
INSERT INTO provenance (job_id, argv, cwd, git_commit, client)
SELECT id, '["stoker", "submit", "job.yaml"]', '/home/ann/project', '0123456789abcdef0123456789abcdef01234567', '0.1.0' FROM jobs;

INSERT INTO decisions (id, pool, policy, config_id, ts, last_ts, ticks, jobs_seen, status, view_seconds, plan_seconds, apply_seconds, plan, outcome)
SELECT id, 'default', 'priority', 0, first_start_at, first_start_at, 3, 4, 'ok', 0.01, 0.001, 0.002,
       '{"starts": [{"job": ' || id || ', "gpus": ["GPU-node0-0"], "lease": ' || id || '}], "stops": [], "deferred": {}}', 'applied'
FROM jobs;
INSERT INTO events (seq, ts, kind, job_id, lease_id, before, after, actor, reason)
SELECT 6 * (j.id - 1) + n, j.submitted_at + to_seconds(40 * n), 'job.state', j.id, CASE WHEN n > 2 THEN j.id END,
       states[n], states[n + 1], 'daemon', 'because of that'
FROM jobs j, range(1, 7) r(n), (SELECT [NULL, 'submitted', 'pending', 'assigned', 'starting', 'running', 'completed'] AS states);
INSERT INTO metrics (job_id, lease_id, rank, seq, ts, step, name, value)
SELECT j.id, j.id, 0, s, j.first_start_at + to_seconds(16 * s), 10 * s, 'loss', 1.0 / s FROM jobs j, range(1, 11) r(s);
INSERT INTO telemetry (ts, gpu_id, node_id, lease_id, utilisation, memory_used, power, temperature)
SELECT j.first_start_at + to_seconds(16 * s), 'GPU-node' || j.id % 16 || '-0', 'node' || j.id % 16, j.id, 0.9, 10000000000, 300, 60
FROM jobs j, range(1, 11) r(s);
