-- Name of a job.
SELECT name FROM jobs WHERE id = $1
