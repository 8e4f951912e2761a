-- What a simulated job was, so that its figures can be asked for without its trace, which need not be imported.

ALTER TABLE sim_jobs ADD COLUMN submitted DOUBLE;
ALTER TABLE sim_jobs ADD COLUMN jct DOUBLE;
ALTER TABLE sim_jobs ADD COLUMN gpus INTEGER;
COMMENT ON COLUMN sim_jobs.submitted IS 'Submission, NULL: the run was stored by an older version';
COMMENT ON COLUMN sim_jobs.jct IS 'Seconds from submission to end, NULL: it never ended';
COMMENT ON COLUMN sim_jobs.gpus IS 'GPUs that it asks for, at least';
