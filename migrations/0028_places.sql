-- Where checkpoints lie, and which runners can read them.

ALTER TABLE nodes ADD COLUMN place VARCHAR;
ALTER TABLE nodes ADD COLUMN shared_place VARCHAR;
ALTER TABLE nodes ADD COLUMN checkpoints VARCHAR;
COMMENT ON COLUMN nodes.place IS 'Name of its home as a place of checkpoints: runners of one place read the same ones; NULL: of a version that does not tell';
COMMENT ON COLUMN nodes.shared_place IS 'Name of the directory shared with other hosts in which it keeps new checkpoints, NULL: it keeps them in its home';
COMMENT ON COLUMN nodes.checkpoints IS 'That directory on its host: DIRECTORY/<job>/checkpoints';

ALTER TABLE jobs ADD COLUMN place VARCHAR;
COMMENT ON COLUMN jobs.place IS 'Place of its newest checkpoint, NULL: it has none';

CREATE TABLE shared_places (
    path  VARCHAR PRIMARY KEY,
    name  VARCHAR NOT NULL
);
COMMENT ON TABLE shared_places IS 'Directories of config.toml in which runners of several hosts keep checkpoints';
COMMENT ON COLUMN shared_places.path IS 'As config.toml names it';
COMMENT ON COLUMN shared_places.name IS 'Of the folder in it that is this daemon''s own, and of its probe file: who finds that has the same directory';

ALTER TABLE nodes ADD COLUMN leaves_at TIMESTAMP;
COMMENT ON COLUMN nodes.leaves_at IS 'When its runner hands it back (UTC), NULL: it does not';
