-- Several leases on a GPU: how each shares it, and what is measured of jobs that may do so.

ALTER TABLE leases ADD COLUMN share VARCHAR DEFAULT 'exclusive';
ALTER TABLE leases ADD COLUMN options JSON;
COMMENT ON COLUMN leases.share IS 'exclusive, or how it shares its GPUs with others, or did: packed';
COMMENT ON COLUMN leases.options IS 'Of one that shares: memory, what it takes of each of its GPUs (bytes)';

ALTER TABLE speeds ADD COLUMN utilisation DOUBLE;
COMMENT ON COLUMN speeds.utilisation IS 'Busy share of a GPU, 0 to 1, mean of a run that had its GPUs alone, moving average; NULL: not measured';

CREATE TABLE slowdowns (
    model       VARCHAR NOT NULL,
    beside      VARCHAR NOT NULL,
    gpu_name    VARCHAR NOT NULL,
    slowdown    DOUBLE NOT NULL,
    samples     BIGINT NOT NULL,
    updated_at  TIMESTAMP NOT NULL,
    PRIMARY KEY (model, beside, gpu_name)
);
COMMENT ON TABLE slowdowns IS 'How many times longer a model takes for a step beside another one on its GPUs than alone, as it was measured';
COMMENT ON COLUMN slowdowns.model IS 'What is trained';
COMMENT ON COLUMN slowdowns.beside IS 'What the other job trains';
COMMENT ON COLUMN slowdowns.gpu_name IS 'Product name of the GPU, or cpu for a slot';
COMMENT ON COLUMN slowdowns.slowdown IS 'Times longer, moving average';
COMMENT ON COLUMN slowdowns.samples IS 'Reports that it is made of';
COMMENT ON COLUMN slowdowns.updated_at IS 'When it was last measured (UTC)';
