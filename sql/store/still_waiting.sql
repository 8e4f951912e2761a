-- Those of the given jobs that have not started or ended meanwhile.
SELECT id FROM jobs WHERE id IN (SELECT unnest($1::BIGINT[])) AND state IN ('submitted', 'pending')
