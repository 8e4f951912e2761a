-- Distribution of the JCT of completed jobs: every job when they are few, else about $most evenly ranked ones.
WITH ranked AS (
    SELECT epoch(j.finished_at) - epoch(j.submitted_at) AS jct,
           row_number() OVER (ORDER BY epoch(j.finished_at) - epoch(j.submitted_at), j.id) AS place,
           count(*) OVER () AS jobs
    FROM jobs j
    WHERE j.state = 'completed' AND ($jobs IS NULL OR list_contains($jobs, j.id)) AND epoch(j.finished_at) >= $since
)
SELECT r.jct, r.place / CAST(r.jobs AS DOUBLE) AS share
FROM ranked r
WHERE r.place = r.jobs OR (r.place - 1) % CAST(ceil(r.jobs / CAST($most AS DOUBLE)) AS BIGINT) = 0
ORDER BY r.place
