-- By which clock times were recorded, so that a daemon notices that it was set.

CREATE TABLE clock (
    id      BIGINT PRIMARY KEY,
    boot_id VARCHAR NOT NULL,
    ahead   DOUBLE NOT NULL
);
COMMENT ON TABLE clock IS 'One row: the reading of the clock by which times are recorded. When it was set, all that has not ended is moved with it';
COMMENT ON COLUMN clock.id IS 'Always 1';
COMMENT ON COLUMN clock.boot_id IS 'Boot of the host on which it was read';
COMMENT ON COLUMN clock.ahead IS 'The time of day less the boot clock (s)';
