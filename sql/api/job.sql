-- One job, whole.
SELECT * FROM jobs WHERE id = $1
