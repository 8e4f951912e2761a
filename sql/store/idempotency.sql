-- Jobs that were submitted with one of these keys, whoever owns them.
SELECT id, owner, idempotency_key, state, spec, epoch(submitted_at) FROM jobs WHERE idempotency_key IN (SELECT unnest($1::VARCHAR[]))
