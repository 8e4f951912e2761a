-- The bank for a job: $1: its owner, $2: recipe, $3: form of what is trained, $4: backbone, NULL: that of the recipe. The newest first.
SELECT job_id, data, digest, labels
FROM adapters
WHERE owner = $1 AND recipe = $2 AND split_part(petl, ' ', 1) = $3 AND gone IS NULL AND ($4::VARCHAR IS NULL OR backbone = $4)
ORDER BY ended_at DESC, job_id DESC
