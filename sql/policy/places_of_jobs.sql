-- Where the checkpoints of jobs lie, and what they take there; jobs without one have no row. $1: the jobs.
SELECT id, place, coalesce(checkpoint_bytes::DOUBLE, 'nan'::DOUBLE) FROM jobs WHERE list_contains($1::BIGINT[], id) AND place IS NOT NULL
