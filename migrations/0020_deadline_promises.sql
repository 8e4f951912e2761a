CREATE TABLE deadline_promises (
    job_id      BIGINT PRIMARY KEY,
    promised_at TIMESTAMP NOT NULL
);
COMMENT ON TABLE deadline_promises IS 'Jobs whose last deadline was expected to be met: told as safe';
COMMENT ON COLUMN deadline_promises.job_id IS 'Job';
COMMENT ON COLUMN deadline_promises.promised_at IS 'When that was first so (UTC)';
