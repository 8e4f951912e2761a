-- One row when the job has been running before.
SELECT 1 FROM jobs WHERE id = $1 AND first_start_at IS NOT NULL
