-- Digests of what hosts may yet fetch from the daemon: checkpoints, and copies of code.
SELECT bundle FROM jobs WHERE finished_at IS NULL AND bundle IS NOT NULL
UNION
SELECT substr(v.snapshot, 8) FROM provenance v JOIN jobs j ON j.id = v.job_id WHERE j.finished_at IS NULL AND v.snapshot LIKE 'sha256:%'
