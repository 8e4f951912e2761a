-- What is warm, on runners that are there.
SELECT w.* FROM warm_now w JOIN nodes n ON n.id = w.node WHERE n.state NOT IN ('stopped', 'gone') ORDER BY w.node, w.recipe, w.backbone
