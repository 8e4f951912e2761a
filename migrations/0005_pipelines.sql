-- What the tuners of data pipelines saw and did (003 ch. 4.3).

CREATE TABLE pipelines (
    job_id       BIGINT NOT NULL,
    lease_id     BIGINT NOT NULL,
    rank         INTEGER NOT NULL,
    seq          BIGINT NOT NULL,
    ts           TIMESTAMP NOT NULL,
    pipeline     VARCHAR NOT NULL,
    stage        VARCHAR NOT NULL,
    position     INTEGER NOT NULL CHECK (position >= 0),
    workers      INTEGER NOT NULL,
    unit         VARCHAR CHECK (unit IN ('workers', 'MiB')),
    value        INTEGER,
    action       INTEGER,
    wanted       INTEGER,
    latency      DOUBLE,
    cpu          DOUBLE,
    wait         DOUBLE,
    items        DOUBLE NOT NULL,
    starved      DOUBLE NOT NULL,
    blocked      DOUBLE NOT NULL,
    queue        BIGINT NOT NULL,
    queue_bytes  BIGINT NOT NULL,
    controller   VARCHAR NOT NULL,
    throughput   DOUBLE NOT NULL,
    demand       DOUBLE,
    reward       DOUBLE NOT NULL,
    cpus         DOUBLE NOT NULL,
    cpu_used     DOUBLE NOT NULL,
    memory_used  BIGINT NOT NULL,
    memory_total BIGINT NOT NULL,
    why          VARCHAR,
    refused      VARCHAR
);
COMMENT ON TABLE pipelines IS 'What the tuners of data pipelines saw and did: one row a step and stage (two where both its workers and its memory can be set)';
COMMENT ON COLUMN pipelines.job_id IS 'Job';
COMMENT ON COLUMN pipelines.lease_id IS 'Lease under which it was reported';
COMMENT ON COLUMN pipelines.rank IS 'Rank whose pipeline it is';
COMMENT ON COLUMN pipelines.seq IS 'Number of the report within the lease and rank: the same in all rows of a step';
COMMENT ON COLUMN pipelines.ts IS 'When the tuner stepped (UTC)';
COMMENT ON COLUMN pipelines.pipeline IS 'Name of the pipeline, where a process has several';
COMMENT ON COLUMN pipelines.stage IS 'Name of the stage';
COMMENT ON COLUMN pipelines.position IS 'Place of the stage in the order of the data, from 0';
COMMENT ON COLUMN pipelines.workers IS 'Workers of the stage after the step';
COMMENT ON COLUMN pipelines.unit IS 'What of the stage is set: workers, or MiB that it may hold; NULL: nothing is';
COMMENT ON COLUMN pipelines.value IS 'What it is set to after the step, in that unit';
COMMENT ON COLUMN pipelines.action IS 'Change of the value since the row before of the same stage';
COMMENT ON COLUMN pipelines.wanted IS 'Value that the controller wanted; it differs from value where the guard refused';
COMMENT ON COLUMN pipelines.latency IS 'Seconds of one item in the stage, cpu and wait together; NULL: none was finished';
COMMENT ON COLUMN pipelines.cpu IS 'Seconds of CPU time of one item';
COMMENT ON COLUMN pipelines.wait IS 'Seconds of one item that were neither CPU time nor waiting for a core: disk, network';
COMMENT ON COLUMN pipelines.items IS 'Items a second that the stage finished';
COMMENT ON COLUMN pipelines.starved IS 'Share (0 to 1) of its workers'' time in which they had no input';
COMMENT ON COLUMN pipelines.blocked IS 'Share (0 to 1) of its workers'' time in which its output was full';
COMMENT ON COLUMN pipelines.queue IS 'Items that waited at its output';
COMMENT ON COLUMN pipelines.queue_bytes IS 'Bytes of those items';
COMMENT ON COLUMN pipelines.controller IS 'Controller that decided';
COMMENT ON COLUMN pipelines.throughput IS 'Samples a second that the pipeline delivered';
COMMENT ON COLUMN pipelines.demand IS 'Samples a second that the training would take if it never waited; NULL: not bounded';
COMMENT ON COLUMN pipelines.reward IS 'Throughput, no more than the demand, times the share of memory that is free';
COMMENT ON COLUMN pipelines.cpus IS 'Cores that the process may use';
COMMENT ON COLUMN pipelines.cpu_used IS 'Cores that the pipeline kept busy';
COMMENT ON COLUMN pipelines.memory_used IS 'Memory in use by pipeline and training (bytes)';
COMMENT ON COLUMN pipelines.memory_total IS 'Memory that they may use (bytes)';
COMMENT ON COLUMN pipelines.why IS 'Why the controller wanted that, in words';
COMMENT ON COLUMN pipelines.refused IS 'What the guard did not allow, and why; NULL: it allowed all';
