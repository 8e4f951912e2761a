-- How models slow each other depends on how they share: the key of `slowdowns` has the kind too. A key cannot be changed, so it is made anew.
CREATE TEMP TABLE slowdowns_before AS FROM slowdowns;
DROP TABLE slowdowns;
CREATE TABLE slowdowns (
    model       VARCHAR NOT NULL,
    beside      VARCHAR NOT NULL,
    gpu_name    VARCHAR NOT NULL,
    kind        VARCHAR NOT NULL DEFAULT 'packed',
    slowdown    DOUBLE NOT NULL,
    samples     BIGINT NOT NULL,
    updated_at  TIMESTAMP NOT NULL,
    PRIMARY KEY (model, beside, gpu_name, kind)
);
INSERT INTO slowdowns SELECT model, beside, gpu_name, 'packed', slowdown, samples, updated_at FROM slowdowns_before;
DROP TABLE slowdowns_before;
COMMENT ON TABLE slowdowns IS 'How many times longer a model takes for a step beside another one on its GPUs than alone, as it was measured';
COMMENT ON COLUMN slowdowns.model IS 'What is trained';
COMMENT ON COLUMN slowdowns.beside IS 'What the other job trains';
COMMENT ON COLUMN slowdowns.gpu_name IS 'Product name of the GPU, or cpu for a slot';
COMMENT ON COLUMN slowdowns.kind IS 'How they shared it: packed or switched';
COMMENT ON COLUMN slowdowns.slowdown IS 'Times longer, moving average';
COMMENT ON COLUMN slowdowns.samples IS 'Reports that it is made of';
COMMENT ON COLUMN slowdowns.updated_at IS 'When it was last measured (UTC)';

-- The job's own priority counts among those that share: stored jobs lose the other one, which nothing has read.
UPDATE jobs SET spec = regexp_replace(spec, '("share":\{"gpu":"[a-z]+","memory":[a-z0-9]+),"priority":-?[0-9]+\}', '\1}')
WHERE contains(spec, '"share":{"gpu":');
UPDATE schedules SET spec = regexp_replace(spec, '("share":\{"gpu":"[a-z]+","memory":[a-z0-9]+),"priority":-?[0-9]+\}', '\1}', 'g')
WHERE contains(spec, '"share":{"gpu":');
COMMENT ON COLUMN jobs.share IS 'How it may share its GPUs: exclusive, packed or switched, NULL: its submitter has not said';
COMMENT ON COLUMN leases.share IS 'exclusive, or how it shares its GPUs with others, or did: packed, switched';
