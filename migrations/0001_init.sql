-- The first schema. Times are TIMESTAMP in UTC; durations are seconds; memory is bytes.
-- No foreign keys and no secondary index: DuckDB's updates of such tables are unsafe or slow.

CREATE TABLE jobs (
    id              BIGINT PRIMARY KEY,
    name            VARCHAR NOT NULL,
    kind            VARCHAR NOT NULL CHECK (kind IN ('train', 'finetune', 'prompt', 'infer')),
    pool            VARCHAR NOT NULL,
    owner           VARCHAR NOT NULL,
    state           VARCHAR NOT NULL CHECK (state IN ('submitted', 'profiling', 'pending', 'assigned', 'starting', 'running',
                        'suspending', 'merged', 'completed', 'failed', 'cancelled')),
    state_since     TIMESTAMP NOT NULL,
    state_reason    VARCHAR,
    priority        BIGINT NOT NULL,
    held            BOOLEAN NOT NULL,
    gpus_min        INTEGER NOT NULL CHECK (gpus_min >= 1),
    gpus_max        INTEGER NOT NULL CHECK (gpus_max >= gpus_min),
    gpu_memory      BIGINT NOT NULL,
    demand          VARCHAR NOT NULL CHECK (demand IN ('best-effort', 'soft', 'strict')),
    deadline        TIMESTAMP,
    model           VARCHAR NOT NULL,
    total_steps     BIGINT,
    est_duration    DOUBLE,
    submitted_at    TIMESTAMP NOT NULL,
    eligible_at     TIMESTAMP,
    first_start_at  TIMESTAMP,
    finished_at     TIMESTAMP CHECK ((finished_at IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled'))),
    not_before      TIMESTAMP,
    attempts        INTEGER NOT NULL,
    failures        INTEGER NOT NULL,
    preemptions     INTEGER NOT NULL,
    cancel_requested BOOLEAN NOT NULL,
    lease_id        BIGINT,
    run_time        DOUBLE NOT NULL,
    attained        DOUBLE NOT NULL,
    outcome         VARCHAR,
    exit_code       INTEGER,
    array_id        BIGINT,
    array_index     INTEGER,
    array_cap       INTEGER,
    schedule_id     BIGINT,
    idempotency_key VARCHAR,
    labels          JSON NOT NULL,
    spec            JSON NOT NULL
);
COMMENT ON TABLE jobs IS 'One row a job, its present state; the history is in events';
COMMENT ON COLUMN jobs.id IS 'Number of the job, in order of submission';
COMMENT ON COLUMN jobs.name IS 'Name given by the submitter';
COMMENT ON COLUMN jobs.kind IS 'train, finetune, prompt or infer';
COMMENT ON COLUMN jobs.pool IS 'Pool whose GPUs it may use';
COMMENT ON COLUMN jobs.owner IS 'User who submitted it';
COMMENT ON COLUMN jobs.state IS 'Present state';
COMMENT ON COLUMN jobs.state_since IS 'When it entered that state (UTC)';
COMMENT ON COLUMN jobs.state_reason IS 'Why it entered that state, in words';
COMMENT ON COLUMN jobs.priority IS 'Larger is more urgent';
COMMENT ON COLUMN jobs.held IS 'Held by a person: not scheduled until released';
COMMENT ON COLUMN jobs.gpus_min IS 'GPUs that it needs at once (a gang)';
COMMENT ON COLUMN jobs.gpus_max IS 'GPUs that it can use at most';
COMMENT ON COLUMN jobs.gpu_memory IS 'Memory needed on each GPU (bytes), 0: unknown';
COMMENT ON COLUMN jobs.demand IS 'best-effort, soft or strict';
COMMENT ON COLUMN jobs.deadline IS 'Last deadline (UTC), NULL: none';
COMMENT ON COLUMN jobs.model IS 'What is trained: recipe and backbone, or command; jobs of one model share estimates';
COMMENT ON COLUMN jobs.total_steps IS 'Iterations until the stopping rule ends it at the latest, NULL: unknown';
COMMENT ON COLUMN jobs.est_duration IS 'Duration that the submitter expects (s), NULL: not given';
COMMENT ON COLUMN jobs.submitted_at IS 'When it was accepted (UTC)';
COMMENT ON COLUMN jobs.eligible_at IS 'When it could first be scheduled (UTC): dependencies met, not held';
COMMENT ON COLUMN jobs.first_start_at IS 'When a worker first ran it (UTC)';
COMMENT ON COLUMN jobs.finished_at IS 'When it reached its final state (UTC)';
COMMENT ON COLUMN jobs.not_before IS 'Backs off until then after a failure (UTC)';
COMMENT ON COLUMN jobs.attempts IS 'Leases granted so far';
COMMENT ON COLUMN jobs.failures IS 'Attempts that failed by the job''s own fault';
COMMENT ON COLUMN jobs.preemptions IS 'Times it was stopped for another job or at the end of a lease';
COMMENT ON COLUMN jobs.cancel_requested IS 'A person cancelled it; it ends when its worker has stopped';
COMMENT ON COLUMN jobs.lease_id IS 'Live lease, NULL: none';
COMMENT ON COLUMN jobs.run_time IS 'Seconds run in ended leases';
COMMENT ON COLUMN jobs.attained IS 'GPU-seconds in ended leases';
COMMENT ON COLUMN jobs.outcome IS 'How it ended: completed, failed, oom, hang, timeout, cancelled, dependency';
COMMENT ON COLUMN jobs.exit_code IS 'Exit code of the last attempt, negative: signal';
COMMENT ON COLUMN jobs.array_id IS 'Array job that it is a task of: the id of the first task';
COMMENT ON COLUMN jobs.array_index IS 'Position in the array, from 0';
COMMENT ON COLUMN jobs.array_cap IS 'Tasks of the array that may run at once, NULL: no cap';
COMMENT ON COLUMN jobs.schedule_id IS 'Recurring schedule that submitted it';
COMMENT ON COLUMN jobs.idempotency_key IS 'A second submission with the same key answers with this job';
COMMENT ON COLUMN jobs.labels IS 'Labels of the submitter, name to value';
COMMENT ON COLUMN jobs.spec IS 'The whole job spec as submitted, secrets never in it';

CREATE TABLE tiers (
    job_id   BIGINT NOT NULL,
    deadline TIMESTAMP NOT NULL,
    reward   DOUBLE NOT NULL
);
COMMENT ON TABLE tiers IS 'Deadline steps of a job with their rewards; a strict deadline is one step';
COMMENT ON COLUMN tiers.job_id IS 'Job';
COMMENT ON COLUMN tiers.deadline IS 'Deadline of the step (UTC)';
COMMENT ON COLUMN tiers.reward IS 'Reward when the job is done by then';

CREATE TABLE dependencies (
    job_id BIGINT NOT NULL,
    needs  BIGINT NOT NULL,
    mode   VARCHAR NOT NULL CHECK (mode IN ('ok', 'any')),
    met    BOOLEAN NOT NULL
);
COMMENT ON TABLE dependencies IS 'Which job waits for the end of which other';
COMMENT ON COLUMN dependencies.job_id IS 'Job that waits';
COMMENT ON COLUMN dependencies.needs IS 'Job that must end first';
COMMENT ON COLUMN dependencies.mode IS 'ok: must complete; any: must end';
COMMENT ON COLUMN dependencies.met IS 'The other job has ended as asked';

CREATE TABLE provenance (
    job_id     BIGINT PRIMARY KEY,
    argv       JSON NOT NULL,
    cwd        VARCHAR NOT NULL,
    git_commit VARCHAR,
    git_diff   VARCHAR,
    snapshot   VARCHAR,
    client     VARCHAR NOT NULL
);
COMMENT ON TABLE provenance IS 'What was submitted, so that what runs can be told from what changed later';
COMMENT ON COLUMN provenance.job_id IS 'Job';
COMMENT ON COLUMN provenance.argv IS 'Command line of the submission';
COMMENT ON COLUMN provenance.cwd IS 'Directory it was submitted from';
COMMENT ON COLUMN provenance.git_commit IS 'Commit of that directory, NULL: not a git checkout';
COMMENT ON COLUMN provenance.git_diff IS 'Uncommitted changes against that commit';
COMMENT ON COLUMN provenance.snapshot IS 'Directory of the copied tree, NULL: not asked for';
COMMENT ON COLUMN provenance.client IS 'Version of the client';

CREATE TABLE progress (
    job_id        BIGINT PRIMARY KEY,
    step          BIGINT NOT NULL,
    total_steps   BIGINT,
    loss          DOUBLE,
    metric        DOUBLE,
    seconds_per_step DOUBLE,
    checkpoint_step BIGINT,
    peak_memory   BIGINT,
    updated_at    TIMESTAMP NOT NULL
);
COMMENT ON TABLE progress IS 'Latest progress of each job that has reported any';
COMMENT ON COLUMN progress.job_id IS 'Job';
COMMENT ON COLUMN progress.step IS 'Last step reported';
COMMENT ON COLUMN progress.total_steps IS 'Steps in all, as the job itself says';
COMMENT ON COLUMN progress.loss IS 'Last loss reported';
COMMENT ON COLUMN progress.metric IS 'Last value of the metric of the stopping rule';
COMMENT ON COLUMN progress.seconds_per_step IS 'Seconds a step, moving average of the current attempt';
COMMENT ON COLUMN progress.checkpoint_step IS 'Step of the last checkpoint';
COMMENT ON COLUMN progress.peak_memory IS 'Peak GPU memory of a rank (bytes)';
COMMENT ON COLUMN progress.updated_at IS 'When it last reported (UTC)';

CREATE TABLE nodes (
    id           VARCHAR PRIMARY KEY,
    host         VARCHAR NOT NULL,
    boot_id      VARCHAR NOT NULL,
    pid          BIGINT NOT NULL,
    pid_started  DOUBLE NOT NULL,
    home         VARCHAR NOT NULL,
    version      VARCHAR NOT NULL,
    session      BIGINT NOT NULL,
    state        VARCHAR NOT NULL CHECK (state IN ('up', 'suspect', 'draining', 'drained', 'stopped', 'gone')),
    address      VARCHAR NOT NULL,
    joined_at    TIMESTAMP NOT NULL,
    last_seen    TIMESTAMP NOT NULL,
    leaving      BOOLEAN NOT NULL DEFAULT false
);
COMMENT ON TABLE nodes IS 'Runners: one agent a host';
COMMENT ON COLUMN nodes.id IS 'Name of the runner';
COMMENT ON COLUMN nodes.host IS 'Host name';
COMMENT ON COLUMN nodes.boot_id IS 'Boot of the host: another one means that every process of before is dead';
COMMENT ON COLUMN nodes.pid IS 'Process of the agent';
COMMENT ON COLUMN nodes.pid_started IS 'Start of that process (s since boot): proof against reused pids';
COMMENT ON COLUMN nodes.home IS 'Directory of its runs';
COMMENT ON COLUMN nodes.version IS 'Version of the agent';
COMMENT ON COLUMN nodes.session IS 'Counts registrations; an agent of an older session is turned away';
COMMENT ON COLUMN nodes.state IS 'up, suspect (silent), draining, drained, stopped (by a person) or gone (declared dead)';
COMMENT ON COLUMN nodes.address IS 'Address at which ranks of a gang meet';
COMMENT ON COLUMN nodes.joined_at IS 'When it registered (UTC)';
COMMENT ON COLUMN nodes.last_seen IS 'When it was last heard (UTC)';
COMMENT ON COLUMN nodes.leaving IS 'It was told to leave when its workers have ended';

CREATE TABLE gpus (
    id       VARCHAR PRIMARY KEY,
    node_id  VARCHAR NOT NULL,
    idx      INTEGER NOT NULL,
    pool     VARCHAR NOT NULL,
    kind     VARCHAR NOT NULL CHECK (kind IN ('cuda', 'cpu')),
    name     VARCHAR NOT NULL,
    memory   BIGINT NOT NULL,
    health   VARCHAR NOT NULL CHECK (health IN ('ok', 'dirty', 'quarantined', 'missing')),
    note     VARCHAR
);
COMMENT ON TABLE gpus IS 'GPUs and CPU slots that runners offer; who holds one is derived from the live leases';
COMMENT ON COLUMN gpus.id IS 'UUID of the GPU, or node/cpuN of a slot';
COMMENT ON COLUMN gpus.node_id IS 'Runner';
COMMENT ON COLUMN gpus.idx IS 'Position on the node, for display and buddy cells';
COMMENT ON COLUMN gpus.pool IS 'Pool';
COMMENT ON COLUMN gpus.kind IS 'cuda, or cpu for a slot';
COMMENT ON COLUMN gpus.name IS 'Product name';
COMMENT ON COLUMN gpus.memory IS 'Total memory (bytes), 0 for a slot';
COMMENT ON COLUMN gpus.health IS 'ok, dirty (memory still held by leftovers), quarantined (a worker could not be killed) or missing';
COMMENT ON COLUMN gpus.note IS 'Why it is not ok, with the pids that hold it';

CREATE TABLE leases (
    id           BIGINT PRIMARY KEY,
    job_id       BIGINT NOT NULL,
    attempt      INTEGER NOT NULL,
    gpu_count    INTEGER NOT NULL,
    state        VARCHAR NOT NULL CHECK (state IN ('granted', 'starting', 'running', 'stopping', 'ended')),
    granted_at   TIMESTAMP NOT NULL,
    started_at   TIMESTAMP,
    expires_at   TIMESTAMP,
    stop_at      TIMESTAMP,
    stop_reason  VARCHAR,
    stop_for     BIGINT,
    ended_at     TIMESTAMP CHECK ((ended_at IS NOT NULL) = (state = 'ended')),
    outcome      VARCHAR,
    message      VARCHAR,
    exit_code    INTEGER,
    policy       VARCHAR NOT NULL,
    decision_id  BIGINT
);
COMMENT ON TABLE leases IS 'Every right to run that was granted: one row an attempt; the id is the fencing number';
COMMENT ON COLUMN leases.id IS 'Fencing number: reports with another one are not taken';
COMMENT ON COLUMN leases.job_id IS 'Job';
COMMENT ON COLUMN leases.attempt IS 'Counts the leases of the job, from 1';
COMMENT ON COLUMN leases.gpu_count IS 'GPUs held';
COMMENT ON COLUMN leases.state IS 'granted, starting, running, stopping or ended';
COMMENT ON COLUMN leases.granted_at IS 'When the policy''s plan was committed (UTC)';
COMMENT ON COLUMN leases.started_at IS 'When its worker lived (UTC)';
COMMENT ON COLUMN leases.expires_at IS 'When the right ends (UTC), NULL: until the job ends';
COMMENT ON COLUMN leases.stop_at IS 'When it was told to stop (UTC)';
COMMENT ON COLUMN leases.stop_reason IS 'preempted, expired, cancelled, held, timeout, hang, drain, or partner (another node''s part of the gang has ended)';
COMMENT ON COLUMN leases.stop_for IS 'Job that it was preempted for';
COMMENT ON COLUMN leases.ended_at IS 'When its last worker was gone (UTC)';
COMMENT ON COLUMN leases.outcome IS 'completed, failed, oom, hang, timeout, preempted, cancelled, lost, start-failed';
COMMENT ON COLUMN leases.message IS 'What happened and the remedy, in words';
COMMENT ON COLUMN leases.exit_code IS 'Exit code, negative: signal';
COMMENT ON COLUMN leases.policy IS 'Policy that granted it';
COMMENT ON COLUMN leases.decision_id IS 'Decision that granted it';

CREATE TABLE lease_gpus (
    lease_id BIGINT NOT NULL,
    gpu_id   VARCHAR NOT NULL,
    node_id  VARCHAR NOT NULL
);
COMMENT ON TABLE lease_gpus IS 'GPUs of each lease';
COMMENT ON COLUMN lease_gpus.lease_id IS 'Lease';
COMMENT ON COLUMN lease_gpus.gpu_id IS 'GPU';
COMMENT ON COLUMN lease_gpus.node_id IS 'Runner of the GPU';

CREATE TABLE workers (
    lease_id    BIGINT NOT NULL,
    node_id     VARCHAR NOT NULL,
    state       VARCHAR NOT NULL CHECK (state IN ('granted', 'starting', 'running', 'exited')),
    pid         BIGINT,
    pid_started DOUBLE,
    boot_id     VARCHAR,
    run_dir     VARCHAR,
    started_at  TIMESTAMP,
    ended_at    TIMESTAMP,
    exit_code   INTEGER,
    outcome     VARCHAR,
    message     VARCHAR,
    PRIMARY KEY (lease_id, node_id)
);
COMMENT ON TABLE workers IS 'The part of a lease on one node: a supervisor process with the ranks below it';
COMMENT ON COLUMN workers.lease_id IS 'Lease';
COMMENT ON COLUMN workers.node_id IS 'Runner';
COMMENT ON COLUMN workers.state IS 'granted, starting, running or exited';
COMMENT ON COLUMN workers.pid IS 'Supervisor process';
COMMENT ON COLUMN workers.pid_started IS 'Start of that process (s since boot): proof against reused pids';
COMMENT ON COLUMN workers.boot_id IS 'Boot of the host it ran under';
COMMENT ON COLUMN workers.run_dir IS 'Directory with its log and reports';
COMMENT ON COLUMN workers.started_at IS 'Start of the worker (UTC)';
COMMENT ON COLUMN workers.ended_at IS 'End of the worker (UTC)';
COMMENT ON COLUMN workers.exit_code IS 'Exit code, negative: signal';
COMMENT ON COLUMN workers.outcome IS 'How it ended, as its runner saw it';
COMMENT ON COLUMN workers.message IS 'What its runner says of the end';

CREATE TABLE report_marks (
    lease_id BIGINT NOT NULL,
    rank     INTEGER NOT NULL,
    seq      BIGINT NOT NULL,
    PRIMARY KEY (lease_id, rank)
);
COMMENT ON TABLE report_marks IS 'Last report taken of each rank, so that a repeated one is not stored twice';
COMMENT ON COLUMN report_marks.lease_id IS 'Lease';
COMMENT ON COLUMN report_marks.rank IS 'Rank';
COMMENT ON COLUMN report_marks.seq IS 'Number of the last report taken';

CREATE TABLE metrics (
    job_id   BIGINT NOT NULL,
    lease_id BIGINT NOT NULL,
    rank     INTEGER NOT NULL,
    seq      BIGINT NOT NULL,
    ts       TIMESTAMP NOT NULL,
    step     BIGINT NOT NULL,
    name     VARCHAR NOT NULL,
    value    DOUBLE
);
COMMENT ON TABLE metrics IS 'What jobs report: one row a value';
COMMENT ON COLUMN metrics.job_id IS 'Job';
COMMENT ON COLUMN metrics.lease_id IS 'Lease under which it was reported';
COMMENT ON COLUMN metrics.rank IS 'Rank that reported';
COMMENT ON COLUMN metrics.seq IS 'Number of the report within the lease and rank';
COMMENT ON COLUMN metrics.ts IS 'When the job measured it (UTC)';
COMMENT ON COLUMN metrics.step IS 'Training step';
COMMENT ON COLUMN metrics.name IS 'loss, accuracy, …';
COMMENT ON COLUMN metrics.value IS 'Value';

CREATE TABLE telemetry (
    ts          TIMESTAMP NOT NULL,
    gpu_id      VARCHAR NOT NULL,
    node_id     VARCHAR NOT NULL,
    lease_id    BIGINT,
    utilisation DOUBLE,
    memory_used BIGINT,
    power       DOUBLE,
    temperature DOUBLE
);
COMMENT ON TABLE telemetry IS 'GPU samples by NVML; of a CPU slot, the CPU use of its worker';
COMMENT ON COLUMN telemetry.ts IS 'Time of the sample (UTC)';
COMMENT ON COLUMN telemetry.gpu_id IS 'GPU';
COMMENT ON COLUMN telemetry.node_id IS 'Runner';
COMMENT ON COLUMN telemetry.lease_id IS 'Lease that held it';
COMMENT ON COLUMN telemetry.utilisation IS 'Busy share, 0 to 1';
COMMENT ON COLUMN telemetry.memory_used IS 'Memory in use (bytes)';
COMMENT ON COLUMN telemetry.power IS 'Power (W), NULL for a slot';
COMMENT ON COLUMN telemetry.temperature IS 'Temperature (°C), NULL for a slot';

CREATE TABLE events (
    seq       BIGINT PRIMARY KEY,
    ts        TIMESTAMP NOT NULL,
    kind      VARCHAR NOT NULL,
    job_id    BIGINT,
    lease_id  BIGINT,
    node_id   VARCHAR,
    before    VARCHAR,
    after     VARCHAR,
    actor     VARCHAR NOT NULL,
    reason    VARCHAR,
    detail    JSON
);
COMMENT ON TABLE events IS 'Everything that happened, appended in the transaction that made it so; never rewritten';
COMMENT ON COLUMN events.seq IS 'Order of the events';
COMMENT ON COLUMN events.ts IS 'When it was committed (UTC)';
COMMENT ON COLUMN events.kind IS 'job.state, job.priority, lease.stop, node.up, task.error, …';
COMMENT ON COLUMN events.job_id IS 'Job concerned';
COMMENT ON COLUMN events.lease_id IS 'Lease concerned';
COMMENT ON COLUMN events.node_id IS 'Runner concerned';
COMMENT ON COLUMN events.before IS 'State before';
COMMENT ON COLUMN events.after IS 'State after';
COMMENT ON COLUMN events.actor IS 'Who did it: a user, policy:NAME, runner:NAME, daemon';
COMMENT ON COLUMN events.reason IS 'Why, in words';
COMMENT ON COLUMN events.detail IS 'Further facts';

CREATE TABLE decisions (
    id             BIGINT PRIMARY KEY,
    pool           VARCHAR NOT NULL,
    policy         VARCHAR NOT NULL,
    config_id      BIGINT NOT NULL,
    ts             TIMESTAMP NOT NULL,
    last_ts        TIMESTAMP NOT NULL,
    ticks          BIGINT NOT NULL,
    jobs_seen      INTEGER NOT NULL,
    status         VARCHAR NOT NULL,
    gap            DOUBLE,
    view_seconds   DOUBLE NOT NULL,
    plan_seconds   DOUBLE NOT NULL,
    apply_seconds  DOUBLE NOT NULL,
    plan           JSON NOT NULL,
    outcome        VARCHAR NOT NULL,
    error          VARCHAR
);
COMMENT ON TABLE decisions IS 'What policies decided; ticks that decide the same in a row share one row';
COMMENT ON COLUMN decisions.id IS 'Number of the decision';
COMMENT ON COLUMN decisions.pool IS 'Pool';
COMMENT ON COLUMN decisions.policy IS 'Policy';
COMMENT ON COLUMN decisions.config_id IS 'Row of policy_settings in force';
COMMENT ON COLUMN decisions.ts IS 'First tick with this decision (UTC)';
COMMENT ON COLUMN decisions.last_ts IS 'Last tick with this decision (UTC)';
COMMENT ON COLUMN decisions.ticks IS 'Ticks that decided the same';
COMMENT ON COLUMN decisions.jobs_seen IS 'Jobs in the view';
COMMENT ON COLUMN decisions.status IS 'Solver status, or ok';
COMMENT ON COLUMN decisions.gap IS 'Relative optimality gap, where certified';
COMMENT ON COLUMN decisions.view_seconds IS 'Time to build the view';
COMMENT ON COLUMN decisions.plan_seconds IS 'Time of plan()';
COMMENT ON COLUMN decisions.apply_seconds IS 'Time to check and commit';
COMMENT ON COLUMN decisions.plan IS 'Starts, stops and refusals';
COMMENT ON COLUMN decisions.outcome IS 'applied, unchanged, invalid, or error';
COMMENT ON COLUMN decisions.error IS 'Why the plan was refused, or what the policy raised';

CREATE TABLE waiting (
    job_id         BIGINT PRIMARY KEY,
    code           VARCHAR NOT NULL,
    reason         VARCHAR NOT NULL,
    position       INTEGER,
    est_start      TIMESTAMP,
    updated_at     TIMESTAMP NOT NULL
);
COMMENT ON TABLE waiting IS 'Why each waiting job waits, and when it is expected to start';
COMMENT ON COLUMN waiting.job_id IS 'Job';
COMMENT ON COLUMN waiting.code IS 'Reason in a word: resources, behind, held, dependency, backoff, cap, …';
COMMENT ON COLUMN waiting.reason IS 'Reason in words';
COMMENT ON COLUMN waiting.position IS 'Place in the order in which the policy would serve, from 1';
COMMENT ON COLUMN waiting.est_start IS 'Estimated start (UTC), NULL: not known';
COMMENT ON COLUMN waiting.updated_at IS 'When this was last decided (UTC)';

CREATE TABLE policy_settings (
    id        BIGINT PRIMARY KEY,
    pool      VARCHAR NOT NULL,
    policy    VARCHAR NOT NULL,
    interval  DOUBLE NOT NULL,
    config    JSON NOT NULL,
    set_by    VARCHAR NOT NULL,
    ts        TIMESTAMP NOT NULL
);
COMMENT ON TABLE policy_settings IS 'Policies set for each pool; the newest row of a pool is in force';
COMMENT ON COLUMN policy_settings.id IS 'Version of the configuration';
COMMENT ON COLUMN policy_settings.pool IS 'Pool';
COMMENT ON COLUMN policy_settings.policy IS 'Policy';
COMMENT ON COLUMN policy_settings.interval IS 'Seconds between ticks; events wake it too';
COMMENT ON COLUMN policy_settings.config IS 'Configuration of the policy';
COMMENT ON COLUMN policy_settings.set_by IS 'Who set it';
COMMENT ON COLUMN policy_settings.ts IS 'When (UTC)';

CREATE TABLE profiles (
    model            VARCHAR NOT NULL,
    gpu_name         VARCHAR NOT NULL,
    gpu_count        INTEGER NOT NULL,
    seconds_per_step DOUBLE,
    duration         DOUBLE,
    peak_memory      BIGINT,
    samples          BIGINT NOT NULL,
    updated_at       TIMESTAMP NOT NULL,
    PRIMARY KEY (model, gpu_name, gpu_count)
);
COMMENT ON TABLE profiles IS 'What ended jobs of a model measured, for the estimates of later ones';
COMMENT ON COLUMN profiles.model IS 'Model, as in jobs';
COMMENT ON COLUMN profiles.gpu_name IS 'Product name of the GPUs';
COMMENT ON COLUMN profiles.gpu_count IS 'GPUs used';
COMMENT ON COLUMN profiles.seconds_per_step IS 'Seconds a step, moving average';
COMMENT ON COLUMN profiles.duration IS 'Run time of whole jobs (s), moving average';
COMMENT ON COLUMN profiles.peak_memory IS 'Largest peak of GPU memory seen (bytes)';
COMMENT ON COLUMN profiles.samples IS 'Jobs measured';
COMMENT ON COLUMN profiles.updated_at IS 'Last measurement (UTC)';

CREATE TABLE schedules (
    id         BIGINT PRIMARY KEY,
    name       VARCHAR NOT NULL,
    cron       VARCHAR NOT NULL,
    enabled    BOOLEAN NOT NULL,
    spec       JSON NOT NULL,
    created_by VARCHAR NOT NULL,
    created_at TIMESTAMP NOT NULL,
    last_at    TIMESTAMP
);
COMMENT ON TABLE schedules IS 'Recurring jobs';
COMMENT ON COLUMN schedules.id IS 'Number of the schedule';
COMMENT ON COLUMN schedules.name IS 'Name';
COMMENT ON COLUMN schedules.cron IS 'Cron expression (UTC)';
COMMENT ON COLUMN schedules.enabled IS 'False: removed by a person';
COMMENT ON COLUMN schedules.spec IS 'Job spec that is submitted each time';
COMMENT ON COLUMN schedules.created_by IS 'User';
COMMENT ON COLUMN schedules.created_at IS 'When it was made (UTC)';
COMMENT ON COLUMN schedules.last_at IS 'Last time it submitted (UTC)';

CREATE TABLE tokens (
    id         BIGINT PRIMARY KEY,
    name       VARCHAR NOT NULL,
    role       VARCHAR NOT NULL CHECK (role IN ('read', 'submit', 'runner', 'admin')),
    digest     VARCHAR NOT NULL,
    created_at TIMESTAMP NOT NULL,
    revoked    BOOLEAN NOT NULL
);
COMMENT ON TABLE tokens IS 'Tokens for TCP access; only their SHA-256 is kept';
COMMENT ON COLUMN tokens.id IS 'Number';
COMMENT ON COLUMN tokens.name IS 'Who it was made for';
COMMENT ON COLUMN tokens.role IS 'read, submit, runner or admin';
COMMENT ON COLUMN tokens.digest IS 'SHA-256 of the token, hexadecimal';
COMMENT ON COLUMN tokens.created_at IS 'When it was made (UTC)';
COMMENT ON COLUMN tokens.revoked IS 'True: no longer accepted';
