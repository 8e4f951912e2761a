-- Where the checkpoints of jobs lie; jobs without one have no row. $1: the jobs.
SELECT id, place FROM jobs WHERE list_contains($1::BIGINT[], id) AND place IS NOT NULL
