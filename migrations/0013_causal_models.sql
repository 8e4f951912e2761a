-- What a pool's causal model was learnt from, so that it outlives a restart.

CREATE TABLE causal_models (
    pool       VARCHAR NOT NULL,
    policy     VARCHAR NOT NULL,
    objective  VARCHAR NOT NULL,
    version    VARCHAR NOT NULL,
    samples    BIGINT NOT NULL,
    edges      JSON NOT NULL,
    learnt     JSON NOT NULL,
    updated_at TIMESTAMP NOT NULL,
    PRIMARY KEY (pool, policy, objective)
);
COMMENT ON TABLE causal_models IS 'Causal models of pools that are tuned: configuration and workload, what explains them, and the objective';
COMMENT ON COLUMN causal_models.pool IS 'Pool';
COMMENT ON COLUMN causal_models.policy IS 'Policy whose configurations it predicts';
COMMENT ON COLUMN causal_models.objective IS 'What it predicts: jct, p99, slo or rho';
COMMENT ON COLUMN causal_models.version IS 'Digest of the policy''s code and keys; a model of another version is learnt anew';
COMMENT ON COLUMN causal_models.samples IS 'Simulations that it was learnt from';
COMMENT ON COLUMN causal_models.edges IS 'Pairs of cause and effect';
COMMENT ON COLUMN causal_models.learnt IS 'The samples and the graph that it is made of again';
COMMENT ON COLUMN causal_models.updated_at IS 'When it last learnt (UTC)';
