-- Which jobs waited longest before they first ran, in the last day?
SELECT id, name, owner, gpus_min, queued, running
FROM jct
WHERE finished_at > now() - INTERVAL 1 DAY
ORDER BY queued DESC
LIMIT 10
