-- Which deadlines will be missed, and by how much?
SELECT id, name, owner, deadline, eta_at, tardiness
FROM slo
WHERE verdict IN ('at risk', 'missed') AND state NOT IN ('completed', 'failed', 'cancelled')
ORDER BY tardiness DESC NULLS LAST
