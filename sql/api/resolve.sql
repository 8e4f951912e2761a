-- Jobs that a word may name, with how well it fits: 0 its number, 1 its name or that of its array (newest first), 2 the beginning
-- of a name. Jobs of the user $2 come before those of others. `whole`: the word names the array, and the row is its first task.
SELECT
    min(id) AS id,
    arg_min(name, id) AS name,
    CASE
        WHEN CAST(id AS VARCHAR) = $1 THEN 0
        WHEN name = $1 OR (array_id IS NOT NULL AND starts_with(name, $1 || '[')) THEN 1
        ELSE 2
    END AS fit,
    bool_and(array_id IS NOT NULL) AND fit > 0 AND NOT contains($1, '[') AS whole
FROM jobs
WHERE CAST(id AS VARCHAR) = $1 OR starts_with(name, $1)
GROUP BY coalesce(array_id, id), fit
ORDER BY fit, bool_or(owner = $2) DESC, id DESC
LIMIT 100
