-- Whether the pools of jobs have enough GPUs for them on runners on which they may yet be tried.
SELECT j.id, count(g.id) >= j.gpus_min
FROM jobs j
LEFT JOIN gpus g ON g.pool = j.pool AND g.health <> 'missing'
  AND g.node_id IN (SELECT n.id FROM nodes n
                    WHERE n.state NOT IN ('stopped', 'gone') AND (j.place IS NULL OR j.place IN (n.host || ':' || n.home, n.place, n.shared_place)
                           OR n.fetch_at_most > coalesce(j.saved_bytes, 0)))
  AND NOT list_contains(json_keys(j.excluded), g.node_id)
WHERE j.id IN (SELECT unnest($1::BIGINT[]))
GROUP BY j.id, j.gpus_min
