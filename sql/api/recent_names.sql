-- Names of the newest jobs.
SELECT name FROM jobs ORDER BY id DESC LIMIT 1000
