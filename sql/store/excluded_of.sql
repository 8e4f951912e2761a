-- Runners on which jobs are not tried again, as stored.
SELECT id, excluded FROM jobs WHERE id IN (SELECT unnest($1::BIGINT[]))
