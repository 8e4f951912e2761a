-- Which of the given jobs have nothing left to wait for: accepted, not held, every dependency met, the weights that it begins with saved.
SELECT j.id
FROM jobs j
WHERE j.id IN (SELECT unnest($1::BIGINT[])) AND j.state = 'submitted' AND NOT j.held
  AND NOT EXISTS (SELECT 1 FROM dependencies d WHERE d.job_id = j.id AND NOT d.met)
  AND (j.begin_from IS NULL OR EXISTS (FROM progress p WHERE p.job_id = j.begin_from AND p.checkpoint_step IS NOT NULL))
ORDER BY j.id
