-- Tasks that wait, of groups of replicas that have finished: those of which some task is completed. $1: tasks whose leases have just ended.
SELECT DISTINCT r.id
FROM jobs j JOIN jobs r ON r.array_id = j.array_id JOIN jobs c ON c.array_id = j.array_id
WHERE j.id IN (SELECT unnest($1::BIGINT[])) AND r.state IN ('submitted', 'pending') AND c.state = 'completed'
ORDER BY r.id
