-- Where did the time of one job go? Put its number in the place of 1.
SELECT state, reason, times, seconds, longest
FROM job_waits
WHERE job_id = 1
ORDER BY seconds DESC
