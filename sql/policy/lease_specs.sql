-- What leases run: the specs of their jobs, the directories of their copied trees, and the memory that they are expected to need on each GPU.
SELECT l.id, j.spec, v.snapshot, coalesce(k.gpu_memory, 0)
FROM leases l
JOIN jobs j ON j.id = l.job_id
LEFT JOIN provenance v ON v.job_id = j.id
LEFT JOIN work k ON k.job_id = j.id
WHERE l.id IN (SELECT unnest($1::BIGINT[]))
