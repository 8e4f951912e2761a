-- All tasks of the array that a job belongs to.
SELECT id FROM jobs WHERE array_id = (SELECT array_id FROM jobs WHERE id = $1) ORDER BY id
