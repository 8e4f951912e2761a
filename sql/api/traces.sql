-- Workload traces in the order in which they were added, with the name of each or of one ($1, NULL: all).
SELECT id, name, format, source, sha256, added_at, added_by, starts_at, jobs, dropped, repaired, recipe
FROM traces
WHERE $1::VARCHAR IS NULL OR name = $1
ORDER BY id
