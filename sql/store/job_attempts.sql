-- Leases granted so far to each job.
SELECT id, attempts FROM jobs WHERE id IN (SELECT unnest($1::BIGINT[]))
