-- The newest $4 steps of pipeline $3 of rank $2 of job $1 in which something was set or refused, newest first.
SELECT ts, lease_id, seq, any_value(controller) AS controller, any_value(throughput) AS throughput, any_value(demand) AS demand,
       any_value(reward) AS reward, any_value(why) AS why, any_value(refused) AS refused,
       list({'stage': stage, 'unit': unit, 'action': action, 'value': value, 'wanted': wanted} ORDER BY position)
           FILTER (action <> 0 OR wanted <> value) AS changes
FROM pipelines
WHERE job_id = $1 AND rank = $2 AND pipeline = $3
GROUP BY ts, lease_id, seq
HAVING bool_or(coalesce(action, 0) <> 0) OR any_value(refused) IS NOT NULL
ORDER BY lease_id DESC, seq DESC
LIMIT $4
