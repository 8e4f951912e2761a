-- How many iterations jobs need that stop at a metric's target (002 ch. 5.3.2.2).

CREATE TABLE iteration_estimates (
    job_id      BIGINT PRIMARY KEY,
    at_step     BIGINT NOT NULL,
    iterations  BIGINT NOT NULL,
    low         BIGINT NOT NULL,
    high        BIGINT NOT NULL CHECK (low <= high),
    probability DOUBLE NOT NULL CHECK (probability BETWEEN 0 AND 1),
    spread      DOUBLE CHECK (spread >= 0),
    points      INTEGER NOT NULL CHECK (points > 0),
    seconds     DOUBLE NOT NULL,
    updated_at  TIMESTAMP NOT NULL
);
COMMENT ON TABLE iteration_estimates IS 'Iterations that jobs are expected to need that stop at a metric''s target, fitted to its values; the newest of each job';
COMMENT ON COLUMN iteration_estimates.job_id IS 'Job';
COMMENT ON COLUMN iteration_estimates.at_step IS 'Step of the last value that it was fitted to';
COMMENT ON COLUMN iteration_estimates.iterations IS 'Step at which the job is expected to end, its maximum at the most';
COMMENT ON COLUMN iteration_estimates.low IS 'Step before which it ends with a probability of 10 %';
COMMENT ON COLUMN iteration_estimates.high IS 'Step before which it ends with a probability of 90 %';
COMMENT ON COLUMN iteration_estimates.probability IS 'Probability (0 to 1) that the target is reached within the maximum of iterations';
COMMENT ON COLUMN iteration_estimates.spread IS 'Standard deviation of the logarithm of the iterations left, NULL: not known';
COMMENT ON COLUMN iteration_estimates.points IS 'Values that it was fitted to';
COMMENT ON COLUMN iteration_estimates.seconds IS 'What the fit took (s)';
COMMENT ON COLUMN iteration_estimates.updated_at IS 'When it was fitted (UTC)';
