-- Workload traces, and what simulations of them gave.

CREATE TABLE traces (
    id        BIGINT PRIMARY KEY,
    name      VARCHAR NOT NULL,
    format    VARCHAR NOT NULL,
    source    VARCHAR NOT NULL,
    sha256    VARCHAR NOT NULL,
    added_at  TIMESTAMP NOT NULL,
    added_by  VARCHAR NOT NULL,
    starts_at TIMESTAMP,
    jobs      BIGINT NOT NULL CHECK (jobs >= 0),
    dropped   JSON NOT NULL,
    repaired  JSON NOT NULL,
    recipe    JSON
);
COMMENT ON TABLE traces IS 'Workload traces: imported from public formats, made from another one, or taken from this daemon''s own history';
COMMENT ON COLUMN traces.id IS 'Number of the trace';
COMMENT ON COLUMN traces.name IS 'Name, of which there is one';
COMMENT ON COLUMN traces.format IS 'Format of its source; synth: made from another trace; history: of this daemon''s own jobs';
COMMENT ON COLUMN traces.source IS 'File that it was read from, or trace that it was made from';
COMMENT ON COLUMN traces.sha256 IS 'Digest of that file';
COMMENT ON COLUMN traces.added_at IS 'When it was imported or made';
COMMENT ON COLUMN traces.added_by IS 'Who imported or made it';
COMMENT ON COLUMN traces.starts_at IS 'Moment of its second 0, NULL: the source does not tell';
COMMENT ON COLUMN traces.jobs IS 'Jobs in trace_jobs';
COMMENT ON COLUMN traces.dropped IS 'Rows of the source that are not in trace_jobs, counted by reason';
COMMENT ON COLUMN traces.repaired IS 'Rows whose values were changed, counted by reason';
COMMENT ON COLUMN traces.recipe IS 'How it was made: generator, seed and every parameter; of an import: the tables that it was read with, NULL when there were none';

CREATE TABLE trace_jobs (
    trace_id     BIGINT NOT NULL,
    job          BIGINT NOT NULL,
    key          VARCHAR NOT NULL,
    submitted    DOUBLE NOT NULL CHECK (submitted >= 0),
    duration     DOUBLE NOT NULL CHECK (duration >= 0),
    gpus_min     INTEGER NOT NULL CHECK (gpus_min >= 1),
    gpus_max     INTEGER NOT NULL,
    user_name    VARCHAR,
    pool         VARCHAR,
    model        VARCHAR,
    batch_size   BIGINT,
    iterations   DOUBLE,
    status       VARCHAR,
    priority     INTEGER NOT NULL,
    estimate     DOUBLE,
    demand       VARCHAR NOT NULL CHECK (demand IN ('best-effort', 'soft', 'strict')),
    deadlines    DOUBLE[] NOT NULL,
    rewards      DOUBLE[] NOT NULL,
    stop         VARCHAR CHECK (stop IN ('iterations', 'performance')),
    scale        VARCHAR CHECK (scale IN ('small', 'medium', 'large')),
    raw          JSON
);
COMMENT ON TABLE trace_jobs IS 'Jobs of traces in one form, whatever the source; times are seconds from the start of the trace';
COMMENT ON COLUMN trace_jobs.trace_id IS 'Trace';
COMMENT ON COLUMN trace_jobs.job IS 'Position in the order of submission, from 0';
COMMENT ON COLUMN trace_jobs.key IS 'The job''s name in the source';
COMMENT ON COLUMN trace_jobs.submitted IS 'Submission (s from the start of the trace)';
COMMENT ON COLUMN trace_jobs.duration IS 'Seconds that it runs on gpus_min GPUs, waiting not counted';
COMMENT ON COLUMN trace_jobs.gpus_min IS 'GPUs that it needs';
COMMENT ON COLUMN trace_jobs.gpus_max IS 'GPUs that it can use, no fewer than gpus_min';
COMMENT ON COLUMN trace_jobs.user_name IS 'Who submitted it';
COMMENT ON COLUMN trace_jobs.pool IS 'Virtual cluster or queue of the source';
COMMENT ON COLUMN trace_jobs.model IS 'Model, as named or assigned';
COMMENT ON COLUMN trace_jobs.batch_size IS 'Global batch size';
COMMENT ON COLUMN trace_jobs.iterations IS 'Training iterations of the whole job';
COMMENT ON COLUMN trace_jobs.status IS 'How it ended, in the word of the source';
COMMENT ON COLUMN trace_jobs.priority IS 'Larger is more urgent';
COMMENT ON COLUMN trace_jobs.estimate IS 'Seconds that somebody predicted, NULL: nobody did';
COMMENT ON COLUMN trace_jobs.demand IS 'best-effort, soft or strict';
COMMENT ON COLUMN trace_jobs.deadlines IS 'Deadlines (s from its submission), earliest first; none for best effort';
COMMENT ON COLUMN trace_jobs.rewards IS 'Reward (0 to 100) for ending before each of the deadlines';
COMMENT ON COLUMN trace_jobs.stop IS 'What ends it: iterations, or performance (a metric''s target)';
COMMENT ON COLUMN trace_jobs.scale IS 'small, medium or large by GPU-time, where it was classed';
COMMENT ON COLUMN trace_jobs.raw IS 'All columns of the source, as they stood there';

CREATE TABLE sim_runs (
    id             BIGINT PRIMARY KEY,
    study          VARCHAR NOT NULL,
    trace          VARCHAR NOT NULL,
    policy         VARCHAR NOT NULL,
    config         JSON NOT NULL,
    nodes          VARCHAR NOT NULL,
    options        JSON NOT NULL,
    seed           BIGINT NOT NULL,
    version        VARCHAR NOT NULL,
    ran_at         TIMESTAMP NOT NULL,
    ran_by         VARCHAR NOT NULL,
    status         VARCHAR NOT NULL CHECK (status IN ('completed', 'failed')),
    error          VARCHAR,
    jobs           BIGINT NOT NULL,
    finished       BIGINT NOT NULL,
    rejected       BIGINT NOT NULL,
    dropped        BIGINT NOT NULL,
    jct_avg        DOUBLE,
    jct_p50        DOUBLE,
    jct_p99        DOUBLE,
    wait_avg       DOUBLE,
    wait_p99       DOUBLE,
    makespan       DOUBLE,
    slo_violations DOUBLE,
    r_slo          DOUBLE,
    rho_avg        DOUBLE,
    rho_max        DOUBLE,
    fair_share     DOUBLE,
    utilisation    DOUBLE,
    preemptions    BIGINT NOT NULL,
    lost_gpu_time  DOUBLE NOT NULL,
    events         BIGINT NOT NULL,
    decisions      BIGINT NOT NULL,
    plan_seconds   DOUBLE NOT NULL,
    wall_seconds   DOUBLE NOT NULL
);
COMMENT ON TABLE sim_runs IS 'Simulations: one policy with one configuration on one trace. All times are simulated but plan_seconds and wall_seconds';
COMMENT ON COLUMN sim_runs.id IS 'Number of the run';
COMMENT ON COLUMN sim_runs.study IS 'What was asked for by one command has one study';
COMMENT ON COLUMN sim_runs.trace IS 'Trace or file that was simulated';
COMMENT ON COLUMN sim_runs.policy IS 'Policy';
COMMENT ON COLUMN sim_runs.config IS 'Its whole configuration, defaults included';
COMMENT ON COLUMN sim_runs.nodes IS 'The simulated cluster: nodes x GPUs of each';
COMMENT ON COLUMN sim_runs.options IS 'Costs, guards and errors of estimates that were modelled';
COMMENT ON COLUMN sim_runs.seed IS 'Seed of everything random';
COMMENT ON COLUMN sim_runs.version IS 'Version of Stoker';
COMMENT ON COLUMN sim_runs.ran_at IS 'When it was stored';
COMMENT ON COLUMN sim_runs.ran_by IS 'Who asked for it';
COMMENT ON COLUMN sim_runs.status IS 'completed, or failed (an invalid plan, a policy that raised)';
COMMENT ON COLUMN sim_runs.error IS 'Why it failed';
COMMENT ON COLUMN sim_runs.jobs IS 'Jobs that were simulated';
COMMENT ON COLUMN sim_runs.finished IS 'Jobs that came to their end';
COMMENT ON COLUMN sim_runs.rejected IS 'Jobs that the policy gave up';
COMMENT ON COLUMN sim_runs.dropped IS 'Jobs of the trace that were left out, larger than the cluster';
COMMENT ON COLUMN sim_runs.jct_avg IS 'Average job completion time (s) of finished jobs';
COMMENT ON COLUMN sim_runs.jct_p50 IS 'Its median (s)';
COMMENT ON COLUMN sim_runs.jct_p99 IS 'Its 99th percentile (s)';
COMMENT ON COLUMN sim_runs.wait_avg IS 'Average queueing delay (s): submission to end, less what it ran';
COMMENT ON COLUMN sim_runs.wait_p99 IS 'Its 99th percentile (s)';
COMMENT ON COLUMN sim_runs.makespan IS 'First submission to last end (s)';
COMMENT ON COLUMN sim_runs.slo_violations IS 'Share of the jobs with deadlines that ended after the last of them, or never; NULL: no job has any';
COMMENT ON COLUMN sim_runs.r_slo IS 'Weighted SLO violation rate: 1 less the mean reward over 100 (002 Eqn 5.15 prints the complement)';
COMMENT ON COLUMN sim_runs.rho_avg IS 'Average finish-time fairness: JCT over the time it would take alone on an equal share';
COMMENT ON COLUMN sim_runs.rho_max IS 'Its maximum';
COMMENT ON COLUMN sim_runs.fair_share IS 'Share of finished jobs whose finish-time fairness is at most 1';
COMMENT ON COLUMN sim_runs.utilisation IS 'GPU-time held over GPU-time there was, first submission to last end';
COMMENT ON COLUMN sim_runs.preemptions IS 'Suspensions of running jobs';
COMMENT ON COLUMN sim_runs.lost_gpu_time IS 'GPU-seconds held without progress: suspending, resuming, work done again';
COMMENT ON COLUMN sim_runs.events IS 'Events that were processed';
COMMENT ON COLUMN sim_runs.decisions IS 'Times that the policy was asked';
COMMENT ON COLUMN sim_runs.plan_seconds IS 'Real seconds spent in plan()';
COMMENT ON COLUMN sim_runs.wall_seconds IS 'Real seconds of the whole run';

CREATE TABLE sim_jobs (
    run_id      BIGINT NOT NULL,
    job         BIGINT NOT NULL,
    started     DOUBLE,
    ended       DOUBLE,
    run_time    DOUBLE NOT NULL,
    gpu_time    DOUBLE NOT NULL,
    lost        DOUBLE NOT NULL,
    preemptions INTEGER NOT NULL,
    rho         DOUBLE,
    reward      DOUBLE,
    rejected    BOOLEAN NOT NULL
);
COMMENT ON TABLE sim_jobs IS 'Every job of every simulation; times are seconds from the start of the trace';
COMMENT ON COLUMN sim_jobs.run_id IS 'Run';
COMMENT ON COLUMN sim_jobs.job IS 'Job of the trace (trace_jobs.job)';
COMMENT ON COLUMN sim_jobs.started IS 'First start, NULL: never';
COMMENT ON COLUMN sim_jobs.ended IS 'End, NULL: never';
COMMENT ON COLUMN sim_jobs.run_time IS 'Seconds that it held GPUs';
COMMENT ON COLUMN sim_jobs.gpu_time IS 'GPU-seconds that it held';
COMMENT ON COLUMN sim_jobs.lost IS 'GPU-seconds of these that brought no progress';
COMMENT ON COLUMN sim_jobs.preemptions IS 'Times that it was suspended';
COMMENT ON COLUMN sim_jobs.rho IS 'Finish-time fairness';
COMMENT ON COLUMN sim_jobs.reward IS 'Reward (0 to 100) of the deadline that it met, NULL: it has none';
COMMENT ON COLUMN sim_jobs.rejected IS 'The policy gave it up';

CREATE TABLE sim_usage (
    run_id  BIGINT NOT NULL,
    ts      DOUBLE NOT NULL,
    busy    INTEGER NOT NULL,
    running INTEGER NOT NULL,
    waiting INTEGER NOT NULL
);
COMMENT ON TABLE sim_usage IS 'State of the simulated cluster over time, thinned to some thousand moments a run';
COMMENT ON COLUMN sim_usage.run_id IS 'Run';
COMMENT ON COLUMN sim_usage.ts IS 'Moment (s from the start of the trace)';
COMMENT ON COLUMN sim_usage.busy IS 'GPUs held';
COMMENT ON COLUMN sim_usage.running IS 'Jobs that hold GPUs';
COMMENT ON COLUMN sim_usage.waiting IS 'Jobs that wait';
