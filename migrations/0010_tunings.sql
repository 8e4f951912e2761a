-- Searches for configurations: what was in force, what was found and what came of it; and which pools tune themselves.

CREATE TABLE tunings (
    id             BIGINT PRIMARY KEY,
    pool           VARCHAR NOT NULL,
    policy         VARCHAR NOT NULL,
    objective      VARCHAR NOT NULL,
    ts             TIMESTAMP NOT NULL,
    before         JSON NOT NULL,
    after          JSON NOT NULL,
    predicted_gain DOUBLE NOT NULL,
    measured_gain  DOUBLE,
    period         DOUBLE NOT NULL,
    expected       DOUBLE NOT NULL,
    trials         BIGINT NOT NULL,
    simulated      BIGINT NOT NULL,
    rejected       BIGINT NOT NULL,
    failed         BIGINT NOT NULL,
    seconds        DOUBLE NOT NULL,
    outcome        VARCHAR NOT NULL,
    why            VARCHAR NOT NULL,
    asked_by       VARCHAR NOT NULL
);
COMMENT ON TABLE tunings IS 'One row a search for a configuration';
COMMENT ON COLUMN tunings.id IS 'Number of the search';
COMMENT ON COLUMN tunings.pool IS 'Pool';
COMMENT ON COLUMN tunings.policy IS 'Policy whose configuration was tuned';
COMMENT ON COLUMN tunings.objective IS 'What was to be small: jct, p99, slo or rho';
COMMENT ON COLUMN tunings.ts IS 'When it was decided (UTC)';
COMMENT ON COLUMN tunings.before IS 'Configuration in force, defaults included';
COMMENT ON COLUMN tunings.after IS 'The best that was found';
COMMENT ON COLUMN tunings.predicted_gain IS 'Objective in force over that of the best, as simulated';
COMMENT ON COLUMN tunings.measured_gain IS 'What the jobs at hand would have taken of the period by the prediction for before, over what they took; NULL: not known yet';
COMMENT ON COLUMN tunings.period IS 'Seconds after which it is measured';
COMMENT ON COLUMN tunings.expected IS 'Mean seconds of the period that jobs at hand were to take had nothing changed';
COMMENT ON COLUMN tunings.trials IS 'Configurations looked at';
COMMENT ON COLUMN tunings.simulated IS 'Of these, simulated';
COMMENT ON COLUMN tunings.rejected IS 'Rejected by the causal model';
COMMENT ON COLUMN tunings.failed IS 'Cut off, or failed';
COMMENT ON COLUMN tunings.seconds IS 'Duration of the search (s)';
COMMENT ON COLUMN tunings.outcome IS 'applied, kept, dry-run, or rolled back';
COMMENT ON COLUMN tunings.why IS 'Why, in words';
COMMENT ON COLUMN tunings.asked_by IS 'Who asked; autosched: the pool tunes itself';

CREATE TABLE auto_tuning (
    id        BIGINT PRIMARY KEY,
    pool      VARCHAR NOT NULL,
    enabled   BOOLEAN NOT NULL,
    period    DOUBLE NOT NULL,
    objective VARCHAR NOT NULL,
    set_by    VARCHAR NOT NULL,
    ts        TIMESTAMP NOT NULL
);
COMMENT ON TABLE auto_tuning IS 'Whether pools tune themselves; the newest row of a pool is in force';
COMMENT ON COLUMN auto_tuning.id IS 'Number of the setting';
COMMENT ON COLUMN auto_tuning.pool IS 'Pool';
COMMENT ON COLUMN auto_tuning.enabled IS 'Whether it does';
COMMENT ON COLUMN auto_tuning.period IS 'Seconds from one search to the next';
COMMENT ON COLUMN auto_tuning.objective IS 'What is to be small: jct, p99, slo or rho';
COMMENT ON COLUMN auto_tuning.set_by IS 'Who set it';
COMMENT ON COLUMN auto_tuning.ts IS 'When (UTC)';
