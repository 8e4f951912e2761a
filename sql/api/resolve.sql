-- Jobs that a word may name, with how well it fits: 0 its number, 1 its name (newest first), 2 the beginning of its name.
SELECT id, name, CASE WHEN CAST(id AS VARCHAR) = $1 THEN 0 WHEN name = $1 THEN 1 ELSE 2 END AS fit, array_id
FROM jobs
WHERE CAST(id AS VARCHAR) = $1 OR starts_with(name, $1)
ORDER BY fit, id DESC
LIMIT 100
