-- Did the new policy help? Completion times by the policy that ran the job.
SELECT l.policy, count(*) AS jobs, avg(j.jct) AS mean_jct, quantile_cont(j.jct, 0.99) AS p99_jct, avg(j.preemptions) AS preemptions
FROM jct j
JOIN leases l ON l.job_id = j.id AND l.attempt = j.attempts
WHERE j.outcome = 'completed'
GROUP BY l.policy
ORDER BY mean_jct
