-- What GPU-time and storage cost, and what jobs keep on disks.

CREATE TABLE prices (
    ts        TIMESTAMP NOT NULL,
    what      VARCHAR NOT NULL CHECK (what IN ('gpu', 'storage')),
    gpu_name  VARCHAR NOT NULL,
    price     DOUBLE NOT NULL,
    PRIMARY KEY (ts, what, gpu_name)
);
COMMENT ON TABLE prices IS 'Prices as config.toml had them; all rows of one moment are one list, which holds until the next';
COMMENT ON COLUMN prices.ts IS 'From when on (UTC)';
COMMENT ON COLUMN prices.what IS 'gpu: an hour of a GPU or slot; storage: a GiB kept for an hour';
COMMENT ON COLUMN prices.gpu_name IS 'Product of the GPU, empty: of all that have no row of their own';
COMMENT ON COLUMN prices.price IS 'Price, in the currency of whoever set it';

CREATE TABLE job_files (
    place   VARCHAR NOT NULL,
    job_id  BIGINT NOT NULL,
    since   TIMESTAMP NOT NULL,
    bytes   BIGINT NOT NULL,
    PRIMARY KEY (place, job_id, since)
);
COMMENT ON TABLE job_files IS 'What the directories of jobs take on a disk: a row whenever it has changed';
COMMENT ON COLUMN job_files.place IS 'Host and home in which the directory lies; runners that share a home share it';
COMMENT ON COLUMN job_files.job_id IS 'Job';
COMMENT ON COLUMN job_files.since IS 'Since when it is so much (UTC)';
COMMENT ON COLUMN job_files.bytes IS 'Bytes, in whole MiB; 0: it has gone';
