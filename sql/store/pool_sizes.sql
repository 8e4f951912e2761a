-- GPUs that each pool has had offered, by nodes that are not declared dead.
SELECT g.pool, count(*)::BIGINT
FROM gpus g JOIN nodes n ON n.id = g.node_id
WHERE n.state NOT IN ('gone', 'stopped') AND g.health <> 'missing'
GROUP BY g.pool
