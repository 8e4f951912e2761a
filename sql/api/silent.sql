-- Runners on which a job holds GPUs and that are not heard; and since when nothing is known of its progress.
SELECT s.id AS node, s.host, s.last_seen, max(p.updated_at) AS reported_at
FROM jobs j
JOIN live_shares g ON g.lease_id = j.lease_id
JOIN silent_runners s ON s.id = g.node
LEFT JOIN progress p ON p.job_id = j.id
WHERE j.id = $1
GROUP BY s.id, s.host, s.last_seen
ORDER BY s.id
