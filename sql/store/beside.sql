-- Who was on GPUs of leases while these ran, a row a lease and other lease. `whole`: both had the same GPUs. $1: leases.
SELECT m.lease_id AS lease, o.id AS other, any_value(j.model) AS model, any_value(j.kind) AS kind, any_value(j.priority) AS priority,
       any_value(o.share) AS share, epoch(any_value(o.granted_at)) AS granted_at,
       epoch(any_value(o.started_at)) AS started_at, epoch(any_value(o.ended_at)) AS ended_at,
       count(*) = any_value(l.gpu_count) AND count(*) = any_value(o.gpu_count) AS whole
FROM lease_gpus m JOIN leases l ON l.id = m.lease_id JOIN lease_gpus h ON h.gpu_id = m.gpu_id AND h.lease_id <> m.lease_id
JOIN leases o ON o.id = h.lease_id JOIN jobs j ON j.id = o.job_id
WHERE m.lease_id IN (SELECT unnest($1::BIGINT[])) AND coalesce(o.ended_at > l.started_at, true)
GROUP BY m.lease_id, o.id
ORDER BY m.lease_id, o.id
