-- What is written of a pool's waiting jobs. $1: pool.
SELECT w.job_id, w.code, w.reason FROM waiting w JOIN jobs j ON j.id = w.job_id WHERE j.pool = $1
