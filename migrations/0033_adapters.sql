-- What fine-tuning jobs leave for others of their backbone to begin with, and what came of it.

ALTER TABLE jobs ADD COLUMN begins VARCHAR;
ALTER TABLE jobs ADD COLUMN begin_after BIGINT;
COMMENT ON COLUMN jobs.begins IS 'auto: it begins with the adapter of an ended job, where that helps; job: with that of begin_after; NULL: from its backbone';
COMMENT ON COLUMN jobs.begin_after IS 'Job with whose adapter it begins, once that has ended (begin: job:NAME), NULL: none is named';
COMMENT ON COLUMN leases.options IS 'Of one that shares: memory, what it takes of each of its GPUs (bytes). begin_from: as of the job. begins: adapters with which it may begin, the best first';

CREATE TABLE adapters (
    job_id    BIGINT PRIMARY KEY,
    owner     VARCHAR NOT NULL,
    recipe    VARCHAR NOT NULL,
    backbone  VARCHAR NOT NULL,
    revision  VARCHAR NOT NULL,
    petl      VARCHAR NOT NULL,
    data      VARCHAR NOT NULL,
    digest    VARCHAR NOT NULL,
    labels    VARCHAR NOT NULL,
    lesson    BIGINT NOT NULL,
    steps     BIGINT NOT NULL,
    reached   BOOLEAN NOT NULL,
    begun     BOOLEAN NOT NULL,
    bytes     BIGINT NOT NULL,
    ended_at  TIMESTAMP NOT NULL,
    gone      VARCHAR
);
COMMENT ON TABLE adapters IS 'What ended fine-tuning jobs have left in their directories for others to begin with';
COMMENT ON COLUMN adapters.job_id IS 'Job that left it';
COMMENT ON COLUMN adapters.owner IS 'User of that job: nobody else''s jobs begin with it';
COMMENT ON COLUMN adapters.recipe IS 'Recipe of that job';
COMMENT ON COLUMN adapters.backbone IS 'Name of its backbone';
COMMENT ON COLUMN adapters.revision IS 'Revision of the backbone: a digest of its files, never mixed with another one';
COMMENT ON COLUMN adapters.petl IS 'What was trained: the form with its size and places, never mixed with another one';
COMMENT ON COLUMN adapters.data IS 'Data set, as the job named it';
COMMENT ON COLUMN adapters.digest IS 'Digest of the training samples: equal where the data are the same';
COMMENT ON COLUMN adapters.labels IS 'Kind of labels: the names of the classes';
COMMENT ON COLUMN adapters.lesson IS 'Digest of all that decides how many steps a job takes, but for its seed and where it begins';
COMMENT ON COLUMN adapters.steps IS 'Steps of the job until it ended';
COMMENT ON COLUMN adapters.reached IS 'Whether it ended at the target of its metric';
COMMENT ON COLUMN adapters.begun IS 'Whether it had begun with another job''s adapter, and kept that';
COMMENT ON COLUMN adapters.bytes IS 'Size of its files';
COMMENT ON COLUMN adapters.ended_at IS 'When the job ended (UTC)';
COMMENT ON COLUMN adapters.gone IS 'Why nobody can begin with it any more, NULL: they can';

CREATE TABLE beginnings (
    job_id      BIGINT PRIMARY KEY,
    source      BIGINT,
    data        VARCHAR NOT NULL,
    labels      VARCHAR,
    same_data   BOOLEAN NOT NULL,
    expected    DOUBLE,
    state       VARCHAR NOT NULL,
    step        BIGINT NOT NULL,
    cost        BIGINT NOT NULL,
    why         VARCHAR NOT NULL,
    decided_at  TIMESTAMP NOT NULL
);
COMMENT ON TABLE beginnings IS 'With which adapter jobs that may begin with one began, and whether they went on with it';
COMMENT ON COLUMN beginnings.job_id IS 'Job that began';
COMMENT ON COLUMN beginnings.source IS 'Job whose adapter it was, or is to be; NULL: it trains from its backbone';
COMMENT ON COLUMN beginnings.data IS 'Its data set, as it names it';
COMMENT ON COLUMN beginnings.labels IS 'Its kind of labels, NULL: not told yet';
COMMENT ON COLUMN beginnings.same_data IS 'Both have the same training samples: such a job has little left to learn, and is counted apart';
COMMENT ON COLUMN beginnings.expected IS 'Steps from the backbone over steps with this adapter, as expected; NULL: nothing was measured';
COMMENT ON COLUMN beginnings.state IS 'planned; begun: tried; kept; undone: it did not help; cold: there was none';
COMMENT ON COLUMN beginnings.step IS 'Step at which that was decided';
COMMENT ON COLUMN beginnings.cost IS 'Steps that trying it has cost: those that the job did not go on from';
COMMENT ON COLUMN beginnings.why IS 'Why this one, or why none';
COMMENT ON COLUMN beginnings.decided_at IS 'When (UTC)';
