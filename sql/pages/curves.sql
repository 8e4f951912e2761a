-- The metrics of a job by step. $1: job, $2: approximate number of points for each name.
WITH numbered AS (
    SELECT name, step, value, lease_id, row_number() OVER (PARTITION BY name ORDER BY step, lease_id, seq) AS n,
           count(*) OVER (PARTITION BY name) AS many
    FROM metrics
    WHERE job_id = $1 AND rank = 0 AND isfinite(value)
)
SELECT name, list(step ORDER BY n) AS steps, list(value ORDER BY n) AS points, max(many) AS many
FROM numbered
WHERE n % greatest(many // $2, 1) = 0 OR n IN (1, many)
GROUP BY name
ORDER BY name
LIMIT 24
