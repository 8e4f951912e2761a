-- Of the given jobs those that may begin with an adapter of the bank, and whether they have begun: with it, or for good without.
SELECT j.id, j.owner, j.begins, j.begin_after, j.spec,
       EXISTS (FROM progress p WHERE p.job_id = j.id AND p.checkpoint_step IS NOT NULL) AS begun, b.state
FROM jobs j LEFT JOIN beginnings b ON b.job_id = j.id
WHERE j.id IN (SELECT unnest($1::BIGINT[])) AND j.begins IS NOT NULL
