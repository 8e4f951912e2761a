-- Which of the given jobs have nothing left to wait for: accepted, not held, every dependency met.
SELECT j.id
FROM jobs j
WHERE j.id IN (SELECT unnest($1::BIGINT[])) AND j.state = 'submitted' AND NOT j.held
  AND NOT EXISTS (SELECT 1 FROM dependencies d WHERE d.job_id = j.id AND NOT d.met)
ORDER BY j.id
