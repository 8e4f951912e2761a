-- Mean seconds of a period that the jobs which were at hand at its beginning took of it. $1: pool, $2: begin, $3: end (s since the epoch).
SELECT avg(least(coalesce(epoch(finished_at), $3), $3) - $2) AS taken
FROM jobs
WHERE pool = $1 AND epoch(submitted_at) <= $2 AND (finished_at IS NULL OR epoch(finished_at) > $2)
