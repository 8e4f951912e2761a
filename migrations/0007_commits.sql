-- Each transaction is counted, so that a start can tell how many the database has lost.

CREATE TABLE commits (
    number       BIGINT NOT NULL,
    committed_at TIMESTAMP NOT NULL
);
COMMENT ON TABLE commits IS 'One row: how many transactions were committed. The file stoker.acknowledged has the same, and a start compares the two';
COMMENT ON COLUMN commits.number IS 'Number of the last transaction, counted since the database was made; what was accepted as lost is counted too';
COMMENT ON COLUMN commits.committed_at IS 'When it was committed (UTC)';

INSERT INTO commits VALUES (0, make_timestamp(epoch_us(now())));
