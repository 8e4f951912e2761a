-- Which policy did best on each simulated trace, averaged over the seeds?
SELECT trace, left(trace_sha256, 8) AS source, nodes, policy, config, count(*) AS seeds, avg(jct_avg) AS jct, avg(jct_p99) AS p99,
       avg(wait_avg) AS wait, avg(r_slo) AS r_slo, avg(fair_share) AS fair_share, avg(utilisation) AS utilisation,
       sum(plan_seconds) / nullif(sum(decisions), 0) AS seconds_a_decision
FROM sim_runs
WHERE status = 'completed'
GROUP BY trace, trace_id, trace_sha256, nodes, policy, config
ORDER BY trace, source, nodes, jct
