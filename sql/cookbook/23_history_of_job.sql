-- Everything that happened to one job. Put its number in the place of 1.
SELECT ts, kind, before, after, actor, reason
FROM events
WHERE job_id = 1
ORDER BY seq
