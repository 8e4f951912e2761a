-- Jobs with whose weights others would begin: what they train, where they stand, and whether they have saved a checkpoint, and left an adapter.
SELECT j.id, j.spec, j.state, EXISTS (FROM progress p WHERE p.job_id = j.id AND p.checkpoint_step IS NOT NULL) AS saved,
       j.begin_from, j.owner, EXISTS (FROM adapters a WHERE a.job_id = j.id AND a.gone IS NULL) AS adapter_left
FROM jobs j
WHERE j.id IN (SELECT unnest($1::BIGINT[]))
