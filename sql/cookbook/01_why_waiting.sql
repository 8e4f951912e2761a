-- Why is each job waiting, and when should it start?
SELECT position, id, name, owner, gpus_min, reason, est_start, waited
FROM queue
ORDER BY pool, position NULLS LAST, id
