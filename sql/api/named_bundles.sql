-- Digests of what hosts may yet fetch from the daemon: checkpoints, and copies of code, in which a job may be tried again for a month.
SELECT bundle FROM jobs WHERE finished_at IS NULL AND bundle IS NOT NULL
UNION
SELECT substr(v.snapshot, 8) FROM provenance v JOIN jobs j ON j.id = v.job_id
WHERE (j.finished_at IS NULL OR j.finished_at > make_timestamp(epoch_us(now())) - INTERVAL 30 DAY) AND v.snapshot LIKE 'sha256:%'
