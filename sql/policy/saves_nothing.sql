-- Of jobs those that cannot be stopped without the loss of all they did: commands without a checkpoint whose like, or themselves, have run,
-- and never saved one. $1: the jobs.
WITH asked AS (SELECT id, model FROM jobs WHERE list_contains($1::BIGINT[], id) AND place IS NULL AND kind <> 'infer' AND spec ->> '$.command' IS NOT NULL)
SELECT a.id
FROM asked a
JOIN jobs o ON o.model = a.model
LEFT JOIN progress p ON p.job_id = o.id
GROUP BY a.id
HAVING bool_or(o.run_time > 0) AND NOT bool_or(o.place IS NOT NULL OR p.checkpoint_step IS NOT NULL)
