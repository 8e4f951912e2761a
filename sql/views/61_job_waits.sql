-- Where the time of each job went: seconds in each state, by what it waited for or why it entered it.
CREATE OR REPLACE VIEW job_waits AS
SELECT s.job_id, j.name, j.owner, j.pool, s.state, s.reason, count(*) AS times, sum(s.seconds) AS seconds, max(s.seconds) AS longest,
       s.state IN ('submitted', 'pending') AS waiting
FROM job_states s JOIN jobs j ON j.id = s.job_id
WHERE s.state NOT IN ('completed', 'failed', 'cancelled')
GROUP BY s.job_id, j.name, j.owner, j.pool, s.state, s.reason;
COMMENT ON VIEW job_waits IS 'Where the time of each job went: seconds in each state, by the reason for which it entered it';
COMMENT ON COLUMN job_waits.job_id IS 'Job';
COMMENT ON COLUMN job_waits.name IS 'Name';
COMMENT ON COLUMN job_waits.owner IS 'User who submitted it';
COMMENT ON COLUMN job_waits.pool IS 'Pool';
COMMENT ON COLUMN job_waits.state IS 'State';
COMMENT ON COLUMN job_waits.reason IS 'Why it entered the state, or what it waited for';
COMMENT ON COLUMN job_waits.times IS 'How often';
COMMENT ON COLUMN job_waits.seconds IS 'Seconds in all';
COMMENT ON COLUMN job_waits.longest IS 'Seconds of the longest stay';
COMMENT ON COLUMN job_waits.waiting IS 'Whether the state is one of waiting';
