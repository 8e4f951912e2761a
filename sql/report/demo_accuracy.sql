-- Last accuracy that each job reported.
SELECT job_id, arg_max(value, step) FROM metrics WHERE name = 'accuracy' AND rank = 0 GROUP BY job_id
