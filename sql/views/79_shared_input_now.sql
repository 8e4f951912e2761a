-- Batches of jobs that share their input, as each job's newest attempt reported last, the sum over its ranks.
CREATE OR REPLACE VIEW shared_input_now AS
WITH newest AS (
    SELECT m.job_id, m.lease_id, m.rank, m.name, arg_max(m.value, m.seq) AS value
    FROM metrics m
    WHERE m.name IN ('input_made', 'input_found', 'input_again', 'input_bytes', 'input_saved')
      AND m.lease_id = (SELECT max(l.id) FROM leases l WHERE l.job_id = m.job_id AND NOT coalesce(l.profile, false))
    GROUP BY m.job_id, m.lease_id, m.rank, m.name
)
SELECT j.id AS job_id, j.name AS job, j.owner, j.state, j.input,
       sum(value) FILTER (n.name = 'input_made')::BIGINT AS made, sum(value) FILTER (n.name = 'input_found')::BIGINT AS found,
       sum(value) FILTER (n.name = 'input_again')::BIGINT AS again, sum(value) FILTER (n.name = 'input_bytes')::BIGINT AS bytes,
       sum(value) FILTER (n.name = 'input_saved') AS saved
FROM newest n JOIN jobs j ON j.id = n.job_id
GROUP BY j.id, j.name, j.owner, j.state, j.input
ORDER BY j.input, j.id;
COMMENT ON VIEW shared_input_now IS 'Batches of jobs that share their input, as each job''s newest attempt reported last';
COMMENT ON COLUMN shared_input_now.job_id IS 'Job';
COMMENT ON COLUMN shared_input_now.job IS 'Name of the job';
COMMENT ON COLUMN shared_input_now.owner IS 'User who submitted it';
COMMENT ON COLUMN shared_input_now.state IS 'Present state of the job';
COMMENT ON COLUMN shared_input_now.input IS 'Name of the group with which it shares (share.input)';
COMMENT ON COLUMN shared_input_now.made IS 'Batches that it made';
COMMENT ON COLUMN shared_input_now.found IS 'Batches that another job had made, and it found';
COMMENT ON COLUMN shared_input_now.again IS 'Of those that it made: another job had made them before, and they were not kept for so long';
COMMENT ON COLUMN shared_input_now.bytes IS 'Bytes of the batches that it found';
COMMENT ON COLUMN shared_input_now.saved IS 'Seconds that making those would have taken';
