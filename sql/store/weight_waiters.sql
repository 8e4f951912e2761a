-- Jobs that have not begun and are to begin with the weights of one of the given jobs; `saved`: that has saved a checkpoint.
SELECT j.id, j.begin_from, EXISTS (FROM progress p WHERE p.job_id = j.begin_from AND p.checkpoint_step IS NOT NULL) AS saved
FROM jobs j
WHERE j.begin_from IN (SELECT unnest($1::BIGINT[])) AND j.state = 'submitted'
ORDER BY j.id
