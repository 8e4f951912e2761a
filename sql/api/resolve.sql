-- Jobs that a word may name, with how well it fits: 0 its number, 1 its name (newest first), 2 the name of its array, 3 the
-- beginning of its name. Those of the user $2 come before other people's. The first of the fitting tasks of an array stands for all of them.
SELECT
    min(id) AS id,
    arg_min(name, id) AS name,
    CASE
        WHEN CAST(id AS VARCHAR) = $1 THEN 0
        WHEN name = $1 THEN 1
        WHEN array_id IS NOT NULL AND starts_with(name, $1 || '[') THEN 2
        ELSE 3
    END AS fit
FROM jobs
WHERE CAST(id AS VARCHAR) = $1 OR starts_with(name, $1)
GROUP BY coalesce(array_id, id), fit
ORDER BY fit, bool_or(owner = $2) DESC, id DESC
LIMIT 100
