-- Backbones that are held ready on runners that are there.
SELECT f.node_id AS node, f.backbone, min(f.state) AS state, sum(f.memory) AS memory
FROM fork_servers f JOIN nodes n ON n.id = f.node_id
WHERE n.state NOT IN ('stopped', 'gone') AND f.backbone <> ''
GROUP BY ALL
ORDER BY f.node_id, f.backbone
