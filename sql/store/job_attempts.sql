-- Leases granted so far to each job, and with whose weights it begins.
SELECT id, attempts, begin_from FROM jobs WHERE id IN (SELECT unnest($1::BIGINT[]))
