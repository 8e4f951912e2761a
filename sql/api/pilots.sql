-- Runners that batch jobs have started and that have not left.
SELECT p.node_id, n.session, p.cluster, p.job, p.host, p.seen
FROM pilots p JOIN nodes n ON n.id = p.node_id
WHERE p.engine = $1 AND n.state NOT IN ('stopped', 'gone')
ORDER BY p.node_id
