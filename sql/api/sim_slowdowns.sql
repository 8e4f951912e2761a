-- How many times longer models take beside others on GPUs of a pool, by the kind of sharing. $1: pool.
SELECT model, beside, kind, max(slowdown) AS slowdown
FROM slowdowns
WHERE gpu_name IN (SELECT name FROM gpus WHERE pool = $1)
GROUP BY model, beside, kind
ORDER BY model, beside, kind
