-- How long do jobs take and wait: median, 90th and 99th percentile by pool?
SELECT pool, count(*) AS jobs, avg(jct) AS mean_jct, quantile_cont(jct, [0.5, 0.9, 0.99]) AS jct, quantile_cont(waiting, [0.5, 0.9, 0.99]) AS waiting
FROM jct
WHERE outcome = 'completed'
GROUP BY pool
ORDER BY pool
