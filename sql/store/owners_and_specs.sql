-- Owners and specs of jobs.
SELECT id, owner, spec FROM jobs WHERE id IN (SELECT unnest($1::BIGINT[]))
