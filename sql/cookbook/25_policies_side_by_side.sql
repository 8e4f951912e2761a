-- Which policy did best in each simulated experiment (one trace, cluster, options and version), averaged over its seeds?
WITH newest AS (
    SELECT *, md5(options::VARCHAR) AS of_options
    FROM sim_runs
    WHERE status = 'completed'
    QUALIFY row_number() OVER (PARTITION BY trace, trace_id, trace_sha256, nodes, options, version, policy, config, seed ORDER BY id DESC) = 1
)
SELECT trace, left(trace_sha256, 8) AS source, nodes, version, left(of_options, 6) AS experiment, policy, config, count(DISTINCT seed) AS seeds,
       avg(jct_avg) AS jct, avg(jct_p99) AS p99, avg(wait_avg) AS wait, avg(r_slo) AS r_slo, avg(fair_share) AS fair_share,
       avg(utilisation) AS utilisation, sum(plan_seconds) / nullif(sum(decisions), 0) AS seconds_a_decision, options
FROM newest
GROUP BY trace, trace_id, trace_sha256, nodes, version, options, of_options, policy, config
ORDER BY trace, source, nodes, version, options, jct
