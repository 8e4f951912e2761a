-- Jobs that a person acts on.
SELECT id, name, state, held, priority, lease_id FROM jobs WHERE id IN (SELECT unnest($1::BIGINT[])) ORDER BY id
