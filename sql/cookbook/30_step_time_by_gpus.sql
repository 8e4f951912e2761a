-- How many seconds should a step of each measured job take, by its GPUs, on one node and over several (NULL: not measured)?
SELECT s.model, s.gang AS divided_by, s.gpu_name, n.gpus,
       s.compute * s.gang / n.gpus + CASE n.gpus WHEN 1 THEN 0 ELSE (n.gpus - 1) * s.within_node END AS on_one_node,
       CASE WHEN n.gpus > 1 AND s.across_nodes IS NOT NULL
            THEN s.compute * s.gang / n.gpus + (n.gpus - 1) * greatest(s.within_node, s.across_nodes) END AS over_several
FROM speeds s CROSS JOIN (VALUES (1), (2), (4), (8), (16)) n(gpus)
WHERE n.gpus >= s.gang
ORDER BY s.model, s.gang, s.gpu_name, n.gpus
