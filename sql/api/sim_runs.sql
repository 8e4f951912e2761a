-- Simulations, the newest first. $1: of this study, NULL: of all; $2: at most so many.
SELECT *
FROM sim_runs
WHERE $1::VARCHAR IS NULL OR study = $1
ORDER BY id DESC
LIMIT $2::BIGINT
