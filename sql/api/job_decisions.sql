-- Newest decisions that started, stopped or put off a job.
WITH mine AS (SELECT coalesce(list(id), []) AS leases FROM leases WHERE job_id = $1)
SELECT d.ts, d.policy, h.code, d.outcome, d.plan, m.leases
FROM decisions d CROSS JOIN mine m LEFT JOIN policy_history h ON h.id = d.config_id
WHERE json_contains(d.plan -> '$.starts[*].job', CAST($1 AS VARCHAR)::JSON)
   OR json_exists(d.plan, '$.deferred."' || $1 || '"')
   OR list_has_any(CAST(d.plan -> '$.stops[*].lease' AS BIGINT[]), m.leases)
ORDER BY d.id DESC
LIMIT 10
