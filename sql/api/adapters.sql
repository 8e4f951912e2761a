-- The bank. $1: owner, NULL: all; $2: those that nobody can begin with any more, too.
SELECT a.job_id, j.name AS job, a.owner, a.recipe, a.backbone, a.revision, a.petl, a.data, a.labels, a.steps, a.reached, a.begun, a.bytes, a.ended_at, a.gone,
       (SELECT count(*) FROM beginnings b WHERE b.source = a.job_id AND b.state IN ('begun', 'kept')) AS helped,
       (SELECT count(*) FROM beginnings b WHERE b.source = a.job_id AND b.state = 'undone') AS undone
FROM adapters a JOIN jobs j ON j.id = a.job_id
WHERE ($1::VARCHAR IS NULL OR a.owner = $1) AND ($2::BOOLEAN OR a.gone IS NULL)
ORDER BY a.job_id DESC
