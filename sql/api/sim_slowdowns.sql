-- How many times longer models take packed beside others on GPUs of a pool. $1: pool.
SELECT model, beside, max(slowdown) AS slowdown
FROM slowdowns
WHERE kind = 'packed' AND gpu_name IN (SELECT name FROM gpus WHERE pool = $1)
GROUP BY model, beside
ORDER BY model, beside
