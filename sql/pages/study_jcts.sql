-- Of each run of a study: by when which share of its finished jobs was done. $1: study. Times are seconds.
WITH submitted AS (
    SELECT r.id, s.ended - t.submitted AS jct
    FROM sim_runs r JOIN sim_jobs s ON s.run_id = r.id JOIN trace_jobs t ON t.trace_id = r.trace_id AND t.job = s.job
    WHERE r.study = $1 AND s.ended IS NOT NULL AND NOT s.rejected
)
SELECT id, quantile_cont(jct, [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0]) AS jcts
FROM submitted
GROUP BY id
ORDER BY id
