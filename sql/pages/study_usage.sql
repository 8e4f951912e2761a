-- State of the simulated cluster over time, of each run of a study in so many pieces. $1: study, $2: pieces.
WITH numbered AS (
    SELECT u.run_id, u.ts, u.busy, u.waiting, row_number() OVER (PARTITION BY u.run_id ORDER BY u.ts) AS n, count(*) OVER (PARTITION BY u.run_id) AS many
    FROM sim_usage u JOIN sim_runs r ON r.id = u.run_id
    WHERE r.study = $1
)
SELECT run_id, list(ts ORDER BY ts) AS moments, list(busy ORDER BY ts) AS busy, list(waiting ORDER BY ts) AS waiting
FROM numbered
WHERE n % greatest(many // $2, 1) = 0 OR n IN (1, many)
GROUP BY run_id
ORDER BY run_id
