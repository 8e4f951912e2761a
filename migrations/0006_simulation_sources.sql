-- Which trace a simulation is of, and which of its jobs count when it is cut off.

ALTER TABLE sim_runs ADD COLUMN trace_id BIGINT;
ALTER TABLE sim_runs ADD COLUMN trace_sha256 VARCHAR;
ALTER TABLE sim_runs ADD COLUMN not_submitted BIGINT;
ALTER TABLE sim_runs ADD COLUMN undecided BIGINT;
COMMENT ON COLUMN sim_runs.trace IS 'Name of the trace or file that was simulated; a file may bear the name of another trace, see trace_id';
COMMENT ON COLUMN sim_runs.trace_id IS 'The trace of traces that was simulated, to be joined with its trace_sha256; NULL: a file, or jobs of this daemon';
COMMENT ON COLUMN sim_runs.trace_sha256 IS 'Digest of the file that the trace was read from (traces.sha256), or of the jobs of a replay; NULL: stored before it was kept';
COMMENT ON COLUMN sim_runs.not_submitted IS 'Jobs of the trace that were left out, submitted at options.until or later; NULL: stored before these were left out';
COMMENT ON COLUMN sim_runs.undecided IS 'Jobs with deadlines that had not ended at options.until, before their last deadline: not in slo_violations and r_slo';
COMMENT ON COLUMN sim_runs.slo_violations IS 'Share of the jobs with deadlines, the undecided left out, that ended after the last of them, or never; NULL: there are none';
COMMENT ON COLUMN sim_runs.r_slo IS 'Weighted SLO violation rate of the same jobs: 1 less the mean reward over 100 (002 Eqn 5.15 prints the complement)';
COMMENT ON COLUMN sim_jobs.job IS 'Job of the trace (trace_jobs.job, where sim_runs.trace_id tells the trace)';
COMMENT ON COLUMN sim_jobs.reward IS 'Reward (0 to 100) of the deadline that it met, NULL: it has none, or the run was cut off before its last';
COMMENT ON TABLE sim_jobs IS 'Every job that took part in a simulation; times are seconds from the start of the trace';
COMMENT ON TABLE sim_usage IS 'State of the simulated cluster over time, thinned to 2 000 moments a run so that integrals over it hold';
