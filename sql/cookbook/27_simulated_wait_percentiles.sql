-- How is the queueing delay spread over the jobs of each simulated run of an imported trace?
SELECT r.id, r.study, r.policy, r.config, r.seed, count(*) AS jobs, quantile_cont(j.ended - t.submitted - j.run_time, 0.5) AS p50,
       quantile_cont(j.ended - t.submitted - j.run_time, 0.9) AS p90, max(j.ended - t.submitted - j.run_time) AS longest
FROM sim_runs r
JOIN traces s ON s.id = r.trace_id AND s.sha256 = r.trace_sha256
JOIN sim_jobs j ON j.run_id = r.id AND j.ended IS NOT NULL
JOIN trace_jobs t ON t.trace_id = s.id AND t.job = j.job
GROUP BY r.id, r.study, r.policy, r.config, r.seed
ORDER BY r.id
