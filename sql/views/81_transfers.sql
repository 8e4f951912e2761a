-- Gains of beginnings with the adapter of another job, predicted beside measured.
CREATE OR REPLACE VIEW transfers AS
WITH cold AS (SELECT lesson, digest, avg(steps) AS steps, count(*) AS jobs FROM adapters WHERE reached AND NOT begun GROUP BY ALL)
SELECT b.job_id, j.name AS job, j.owner, b.data, b.source AS from_job, s.data AS from_data, s.labels = b.labels AS same_labels, b.same_data,
       s.labels AS from_labels, b.labels, b.state AS outcome, b.expected,
       CASE WHEN a.begun AND (a.reached OR a.steps >= c.steps) THEN c.steps / greatest(a.steps + CASE WHEN b.state = 'joint' THEN b.cost ELSE 0 END, 1) END AS measured,
       c.steps AS cold_steps, c.jobs AS cold_jobs, a.steps, b.step AS decided_at_step, b.cost AS cost_steps, b.why
FROM beginnings b
JOIN jobs j ON j.id = b.job_id
LEFT JOIN adapters s ON s.job_id = b.source
LEFT JOIN adapters a ON a.job_id = b.job_id
LEFT JOIN cold c ON c.lesson = a.lesson AND c.digest = a.digest
ORDER BY b.job_id DESC;
COMMENT ON VIEW transfers IS 'Gains of beginnings with the adapter of another job, predicted beside measured';
COMMENT ON COLUMN transfers.job_id IS 'Job that began';
COMMENT ON COLUMN transfers.job IS 'Name of the job';
COMMENT ON COLUMN transfers.owner IS 'User of the job';
COMMENT ON COLUMN transfers.data IS 'Data set of the job';
COMMENT ON COLUMN transfers.from_job IS 'Job whose adapter it was, or is to be; NULL: none';
COMMENT ON COLUMN transfers.from_data IS 'Data set of that job';
COMMENT ON COLUMN transfers.same_labels IS 'Both have the same kind of labels';
COMMENT ON COLUMN transfers.same_data IS 'Both have the same training samples: counted apart, as little is left to learn';
COMMENT ON COLUMN transfers.from_labels IS 'Kind of labels of that job';
COMMENT ON COLUMN transfers.labels IS 'Kind of labels of the job';
COMMENT ON COLUMN transfers.outcome IS 'planned; begun: being tried, or as job:NAME says; kept; undone: it did not help; joint: its first steps were trained together with that job; cold: from the backbone';
COMMENT ON COLUMN transfers.expected IS 'Steps from the backbone over steps with the adapter, as expected before it began; NULL: nothing was measured';
COMMENT ON COLUMN transfers.measured IS 'The same as it came, against jobs like it that trained from the backbone, of one that missed its target at most so much; NULL: undone, not that long, or no such job';
COMMENT ON COLUMN transfers.cold_steps IS 'Steps that jobs like it took to the target from the backbone, the mean';
COMMENT ON COLUMN transfers.cold_jobs IS 'Number of these';
COMMENT ON COLUMN transfers.steps IS 'Steps that it took';
COMMENT ON COLUMN transfers.decided_at_step IS 'Step at which it was kept or undone';
COMMENT ON COLUMN transfers.cost_steps IS 'Steps that trying it cost, which the job did not go on from; joint: steps together, of the lease of that job';
COMMENT ON COLUMN transfers.why IS 'Why this adapter, or why none';
