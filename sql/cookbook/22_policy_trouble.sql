-- Which plans were refused or raised, and is the policy fast enough?
SELECT pool, policy, outcome, sum(ticks) AS ticks, max(plan_seconds) AS slowest_plan, max(jobs_seen) AS jobs_seen, any_value(error) AS error
FROM decisions
GROUP BY pool, policy, outcome
ORDER BY pool, ticks DESC
