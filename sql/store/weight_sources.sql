-- Jobs with whose weights others would begin: what they train, where they stand, and whether they have saved a checkpoint.
SELECT j.id, j.spec, j.state, EXISTS (FROM progress p WHERE p.job_id = j.id AND p.checkpoint_step IS NOT NULL) AS saved,
       j.begin_from
FROM jobs j
WHERE j.id IN (SELECT unnest($1::BIGINT[]))
