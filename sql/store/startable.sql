-- Those of the given jobs that wait for GPUs and may start now.
SELECT id FROM jobs WHERE id IN (SELECT unnest($1::BIGINT[])) AND state = 'pending' AND NOT held AND lease_id IS NULL
