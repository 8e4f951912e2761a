-- Which jobs gain or lose most between two simulated runs of one trace? Put their numbers in the places of 1 and 2.
SELECT a.job, a.ended AS ended_first, b.ended AS ended_second, b.ended - a.ended AS seconds_later, a.preemptions AS preempted_first,
       b.preemptions AS preempted_second
FROM sim_jobs a JOIN sim_jobs b ON b.job = a.job
WHERE a.run_id = 1 AND b.run_id = 2
ORDER BY abs(seconds_later) DESC NULLS LAST
LIMIT 20
