-- Of jobs whose checkpoints are to go to another host: where they lie, the digest by which the daemon has them, why they were not sent, the step, their bytes.
-- $1: the jobs.
SELECT j.id, j.place, j.bundle, j.not_sent, p.checkpoint_step, coalesce(j.saved_bytes, 0)
FROM jobs j LEFT JOIN progress p ON p.job_id = j.id
WHERE list_contains($1::BIGINT[], j.id)
