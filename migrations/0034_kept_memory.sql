-- What jobs that give their steps up for others keep of a GPU's memory meanwhile (share: {memory: replay}).

ALTER TABLE jobs ADD COLUMN kept_memory BIGINT;
COMMENT ON COLUMN jobs.kept_memory IS 'Of one with share: {memory: replay}, what it keeps of a GPU while others have the turn (bytes), as measured; NULL: all, or not known';
