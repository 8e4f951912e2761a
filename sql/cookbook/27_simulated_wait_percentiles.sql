-- How is the queueing delay spread over the jobs of each simulated run?
SELECT r.id, r.study, r.policy, r.config, r.seed, count(*) AS jobs, quantile_cont(j.jct - j.run_time, 0.5) AS p50,
       quantile_cont(j.jct - j.run_time, 0.9) AS p90, max(j.jct - j.run_time) AS longest
FROM sim_runs r
JOIN sim_jobs j ON j.run_id = r.id AND j.jct IS NOT NULL
GROUP BY r.id, r.study, r.policy, r.config, r.seed
ORDER BY r.id
