-- How many GPUs each node of a pool offers. $1: pool.
SELECT count(*) AS gpus
FROM gpus g JOIN nodes n ON n.id = g.node_id
WHERE g.pool = $1 AND n.state <> 'gone' AND g.health <> 'missing'
GROUP BY n.id
ORDER BY n.id
