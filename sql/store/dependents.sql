-- Jobs not yet ended that wait for one of the given jobs.
SELECT d.job_id, d.needs, d.mode
FROM dependencies d JOIN jobs j ON j.id = d.job_id
WHERE d.needs IN (SELECT unnest($1::BIGINT[])) AND NOT d.met AND j.finished_at IS NULL
ORDER BY d.job_id
