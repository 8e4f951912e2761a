-- Which batch job of a cluster started a runner: when that has ended, so has the runner.

CREATE TABLE pilots (
    node_id  VARCHAR PRIMARY KEY,
    engine   VARCHAR NOT NULL,
    cluster  VARCHAR NOT NULL,
    job      VARCHAR NOT NULL,
    host     VARCHAR NOT NULL,
    seen     BOOLEAN NOT NULL
);
COMMENT ON TABLE pilots IS 'Runners that a batch job of a cluster has started, which ends all their processes when it ends';
COMMENT ON COLUMN pilots.node_id IS 'Runner';
COMMENT ON COLUMN pilots.engine IS 'What runs that job: slurm';
COMMENT ON COLUMN pilots.cluster IS 'Name of the cluster';
COMMENT ON COLUMN pilots.job IS 'Its number there';
COMMENT ON COLUMN pilots.host IS 'Name of its host there';
COMMENT ON COLUMN pilots.seen IS 'The daemon has seen the job in the cluster''s queue: once it is missing there, it has ended';
