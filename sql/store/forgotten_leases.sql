-- Leases that a runner had taken up and of which it has no trace now.
SELECT w.lease_id
FROM workers w JOIN leases l ON l.id = w.lease_id
WHERE w.node_id = $1 AND w.state IN ('starting', 'running') AND l.state <> 'ended'
  AND w.lease_id NOT IN (SELECT unnest($2::BIGINT[]))
ORDER BY w.lease_id
