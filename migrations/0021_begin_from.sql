-- Jobs that begin with the weights of another one.

ALTER TABLE jobs ADD COLUMN begin_from BIGINT;
COMMENT ON COLUMN jobs.begin_from IS 'Job with whose newest checkpoint it begins while it has none of its own, NULL: with what its recipe builds, or a file';
COMMENT ON COLUMN leases.options IS 'Of one that shares: memory, what it takes of each of its GPUs (bytes). begin_from: as of the job';
