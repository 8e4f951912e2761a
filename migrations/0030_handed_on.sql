-- Checkpoints that are handed on to other hosts through the daemon.

ALTER TABLE nodes ADD COLUMN fetch_at_most BIGINT;
COMMENT ON COLUMN nodes.fetch_at_most IS 'Bytes of a checkpoint that its runner fetches from another host at most, NULL: of a version that fetches none';

ALTER TABLE jobs ADD COLUMN saved_bytes BIGINT;
ALTER TABLE jobs ADD COLUMN bundle VARCHAR;
ALTER TABLE jobs ADD COLUMN not_sent VARCHAR;
COMMENT ON COLUMN jobs.saved_bytes IS 'What its checkpoints took when its last worker ended, NULL: not told';
COMMENT ON COLUMN jobs.bundle IS 'Digest of its newest checkpoints as the daemon has them, for other hosts; NULL: it does not';
COMMENT ON COLUMN jobs.not_sent IS 'Why its newest checkpoints could not be sent from where they lie, NULL: nobody has tried, or they were';
