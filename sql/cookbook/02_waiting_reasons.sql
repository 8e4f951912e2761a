-- What does the queue wait for, in sum?
SELECT pool, code, count(*) AS jobs, sum(gpus_min) AS gpus, max(waited) AS longest
FROM queue
GROUP BY pool, code
ORDER BY jobs DESC
