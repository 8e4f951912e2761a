-- What do preemptions cost: how many, for whom, and GPU-time lost while leaving?
SELECT date_trunc('day', stop_at) AS day, stop_reason, count(*) AS stops, avg(leaving) AS mean_leaving, sum(leaving * gpus) AS gpu_seconds_leaving
FROM preemptions
GROUP BY day, stop_reason
ORDER BY day, stops DESC
