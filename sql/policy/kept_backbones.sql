-- Runners and the backbones that fork servers of theirs are to have: by a policy, or by hand.
SELECT node_id, warm AS backbone FROM gpus WHERE warm IS NOT NULL
UNION SELECT g.node_id, p.backbone FROM gpus g JOIN pool_backbones p ON p.pool = g.pool WHERE g.health <> 'missing'
ORDER BY ALL
