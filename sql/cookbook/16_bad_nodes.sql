-- Does one runner fail more often than the others?
SELECT g.node_id, count(*) AS attempts, count(*) FILTER (l.outcome IN ('failed', 'oom', 'hang', 'lost', 'start-failed')) AS bad,
       bad / count(*) AS share
FROM leases l
JOIN lease_gpus g ON g.lease_id = l.id
WHERE l.state = 'ended'
GROUP BY g.node_id
ORDER BY share DESC
