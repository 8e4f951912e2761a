-- Digests of what hosts may yet fetch from the daemon.
SELECT bundle FROM jobs WHERE finished_at IS NULL AND bundle IS NOT NULL
