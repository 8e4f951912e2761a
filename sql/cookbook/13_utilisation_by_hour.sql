-- How busy were the GPUs, hour by hour: under lease, and measured?
SELECT date_trunc('hour', bucket) AS hour, avg(leased) AS leased, avg(utilisation) AS utilisation
FROM utilisation_5m
GROUP BY hour
ORDER BY hour
