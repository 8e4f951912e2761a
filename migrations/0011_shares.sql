-- Several leases on a GPU: how each shares it, and what is measured of jobs that may do so.

ALTER TABLE leases ADD COLUMN share VARCHAR DEFAULT 'exclusive';
ALTER TABLE leases ADD COLUMN options JSON;
COMMENT ON COLUMN leases.share IS 'exclusive, or how it shares its GPUs with others, or did: packed';
COMMENT ON COLUMN leases.options IS 'Of one that shares: memory, what it takes of each of its GPUs (bytes)';

ALTER TABLE speeds ADD COLUMN utilisation DOUBLE;
COMMENT ON COLUMN speeds.utilisation IS 'Busy share of a GPU, 0 to 1, mean of a run that had its GPUs alone, moving average; NULL: not measured';
