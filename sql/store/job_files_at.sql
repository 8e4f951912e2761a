-- What jobs keep in a home, as it was told last.
SELECT job_id, arg_max(bytes, since) AS bytes FROM job_files WHERE place = $1 GROUP BY job_id HAVING arg_max(bytes, since) > 0
