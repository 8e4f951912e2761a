-- Jobs that have not ended, of the user $1, in the states $2, with a name, or an array's name, like $3, and with the labels $4; null: any.
SELECT id
FROM jobs
WHERE finished_at IS NULL AND owner = $1
  AND ($2::VARCHAR[] IS NULL OR list_contains($2::VARCHAR[], state))
  AND ($3::VARCHAR IS NULL OR name LIKE $3 ESCAPE '\' OR name LIKE $3 || '[%' ESCAPE '\')
  AND ($4::JSON IS NULL OR json_contains(labels, $4::JSON))
ORDER BY id
