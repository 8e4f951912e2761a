-- What a job reported of rank 0 after a place, oldest first. $1: job, $2: of these names, null: all; $3, $4: lease and number of the last
-- record that is known, $5: at most so many rows.
SELECT lease_id, seq, step, name, value, ts
FROM metrics
WHERE job_id = $1 AND rank = 0
  AND ($2::VARCHAR[] IS NULL OR list_contains($2::VARCHAR[], name))
  AND (lease_id > $3::BIGINT OR (lease_id = $3::BIGINT AND seq > $4::BIGINT))
ORDER BY lease_id, seq, name
LIMIT $5::BIGINT
