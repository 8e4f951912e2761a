-- How long was the queue over the last day, in steps of ten minutes?
SELECT t.ts, count(s.job_id) AS waiting
FROM generate_series(time_bucket(INTERVAL 10 MINUTE, make_timestamp(epoch_us(now()))) - INTERVAL 1 DAY, make_timestamp(epoch_us(now())), INTERVAL 10 MINUTE) t(ts)
LEFT JOIN job_states s ON s.state = 'pending' AND s.since <= t.ts AND coalesce(s.until, make_timestamp(epoch_us(now()))) > t.ts
GROUP BY t.ts
ORDER BY t.ts
