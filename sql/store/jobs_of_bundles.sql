-- Jobs that have not ended whose checkpoints the daemon has by some digests. $1: the digests.
SELECT id FROM jobs WHERE finished_at IS NULL AND list_contains($1::VARCHAR[], bundle)
