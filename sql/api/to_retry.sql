-- What is needed to submit the jobs $1 once more.
SELECT id, name, owner, state, spec, submitted_at
FROM jobs
WHERE id IN (SELECT unnest($1::BIGINT[]))
ORDER BY id
