-- Profiling runs, and what is measured of the speed of a step (002 ch. 5.3.2.1).

ALTER TABLE leases ADD COLUMN profile BOOLEAN DEFAULT false;
COMMENT ON COLUMN leases.profile IS 'A profiling run: it only measures, what it trains is dropped';
COMMENT ON COLUMN leases.attempt IS 'Counts the leases of the job in which it trains, from 1; of a profiling run: of those before it';
COMMENT ON COLUMN leases.outcome IS 'completed, failed, oom, hang, timeout, preempted, cancelled, lost, start-failed, profiled';

ALTER TABLE jobs ADD COLUMN signature BIGINT;
ALTER TABLE jobs ADD COLUMN unmeasured INTEGER DEFAULT 0;
COMMENT ON COLUMN jobs.attempts IS 'Leases granted so far, profiling runs left out';
COMMENT ON COLUMN jobs.signature IS 'Of what a GPU does in one of its steps: jobs with the same share speeds; NULL: cannot be measured (a command)';
COMMENT ON COLUMN jobs.unmeasured IS 'Profiling runs whose lease was over before enough was measured';

CREATE TABLE speeds (
    signature    BIGINT NOT NULL,
    gpu_name     VARCHAR NOT NULL,
    model        VARCHAR NOT NULL,
    gang         INTEGER NOT NULL CHECK (gang >= 1),
    compute      DOUBLE NOT NULL CHECK (compute > 0),
    within_node  DOUBLE CHECK (within_node >= 0),
    across_nodes DOUBLE CHECK (across_nodes >= 0),
    peak_memory  BIGINT,
    samples      BIGINT NOT NULL,
    updated_at   TIMESTAMP NOT NULL,
    PRIMARY KEY (signature, gpu_name)
);
COMMENT ON TABLE speeds IS 'How long a step takes: n GPUs take compute + (n - 1) times the synchronisation of one more GPU';
COMMENT ON COLUMN speeds.signature IS 'What a GPU does in a step, as in jobs: the batch of a rank, too';
COMMENT ON COLUMN speeds.gpu_name IS 'Product name of the GPUs';
COMMENT ON COLUMN speeds.model IS 'Model, as in jobs';
COMMENT ON COLUMN speeds.gang IS 'GPUs over which the batch is divided';
COMMENT ON COLUMN speeds.compute IS 'Seconds of a step without the synchronisation of gradients, moving average';
COMMENT ON COLUMN speeds.within_node IS 'Seconds that each GPU after the first adds on one node, moving average; NULL: not measured';
COMMENT ON COLUMN speeds.across_nodes IS 'Seconds that each GPU after the first adds over several nodes, moving average; NULL: not measured';
COMMENT ON COLUMN speeds.peak_memory IS 'Largest peak of GPU memory of a rank (bytes), NULL: not measured';
COMMENT ON COLUMN speeds.samples IS 'Reports folded in';
COMMENT ON COLUMN speeds.updated_at IS 'Last measurement (UTC)';
