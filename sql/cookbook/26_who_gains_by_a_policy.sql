-- Which jobs gain or lose most between two simulated runs of one trace? Put their numbers in the places of 1 and 2.
SELECT a.job, r.policy AS first, s.policy AS second, a.ended AS ended_first, b.ended AS ended_second, b.ended - a.ended AS seconds_later,
       a.preemptions AS preempted_first, b.preemptions AS preempted_second,
       r.nodes = s.nodes AND r.options = s.options AND r.seed = s.seed AND r.version = s.version AS only_policies_differ
FROM sim_runs r
JOIN sim_runs s ON s.trace = r.trace AND s.trace_sha256 = r.trace_sha256 AND s.trace_id IS NOT DISTINCT FROM r.trace_id
JOIN sim_jobs a ON a.run_id = r.id
JOIN sim_jobs b ON b.run_id = s.id AND b.job = a.job
WHERE r.id = 1 AND s.id = 2
ORDER BY abs(seconds_later) DESC NULLS LAST
LIMIT 20
