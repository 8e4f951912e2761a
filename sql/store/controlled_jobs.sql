-- Jobs that a person acts on.
SELECT id, name, owner, state, held, priority, lease_id, place, excluded,
       EXISTS (FROM progress p WHERE p.job_id = jobs.id AND p.checkpoint_step IS NOT NULL) AS saved
FROM jobs
WHERE id IN (SELECT unnest($1::BIGINT[]))
ORDER BY id
