-- How many seconds should a step of each measured job take, by its GPUs, on one node and over several?
SELECT s.model, s.gang AS divided_by, s.gpu_name, n.gpus,
       s.compute * s.gang / n.gpus + (n.gpus - 1) * coalesce(s.within_node, s.across_nodes, 0) AS on_one_node,
       s.compute * s.gang / n.gpus + (n.gpus - 1) * coalesce(greatest(s.within_node, s.across_nodes), s.within_node, s.across_nodes, 0)
           AS over_several
FROM speeds s CROSS JOIN (VALUES (1), (2), (4), (8), (16)) n(gpus)
WHERE n.gpus >= s.gang
ORDER BY s.model, s.gang, s.gpu_name, n.gpus
