-- Runners and the backbones that fork servers of theirs are to have.
SELECT DISTINCT node_id, warm FROM gpus WHERE warm IS NOT NULL ORDER BY ALL
