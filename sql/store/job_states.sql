-- States of jobs by number.
SELECT id, state FROM jobs WHERE id IN (SELECT unnest($1::BIGINT[]))
