-- Jobs that were submitted with one of these keys.
SELECT id, idempotency_key, state FROM jobs WHERE idempotency_key IN (SELECT unnest($1::VARCHAR[]))
