-- What a job has left for others to begin with.
SELECT job_id, data, digest, labels, gone, owner FROM adapters WHERE job_id = $1
