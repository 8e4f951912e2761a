-- How many times longer models take beside others on GPUs of a pool. $1: pool.
SELECT model, beside, max(slowdown) AS slowdown
FROM slowdowns
WHERE gpu_name IN (SELECT name FROM gpus WHERE pool = $1)
GROUP BY model, beside
ORDER BY model, beside
