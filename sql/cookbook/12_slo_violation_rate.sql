-- What share of deadlines was missed, plain and weighted by reward, by day?
SELECT date_trunc('day', deadline) AS day, count(*) AS jobs, avg((verdict <> 'met')::INTEGER) AS violation_rate,
       1 - sum(reward_earned) / sum(reward_possible) AS weighted_violation_rate
FROM slo
WHERE state IN ('completed', 'failed', 'cancelled')
GROUP BY day
ORDER BY day
