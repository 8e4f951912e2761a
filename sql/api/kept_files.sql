-- What the directories of jobs take in each home, as its runners told it last.
WITH newest AS (SELECT place, job_id, arg_max(bytes, since) AS bytes FROM job_files GROUP BY place, job_id)
SELECT place, count(*) AS jobs, sum(bytes)::BIGINT AS bytes FROM newest WHERE bytes > 0 GROUP BY place ORDER BY place
