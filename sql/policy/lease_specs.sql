-- What leases run: the specs of their jobs, the directories of their copied trees, the memory that they need of each GPU,
-- the run directory of the newest lease (of a gang that of its first node) of the job whose weights they begin with, and of a server that
-- job's spec, the owners, adapters with which they may begin, and with whom they train first.
SELECT l.id, j.spec, v.snapshot, coalesce(CAST(l.options ->> 'memory' AS BIGINT), k.gpu_memory, 0),
       CAST(l.options ->> 'begin_from' AS BIGINT) AS source, (SELECT s.place FROM jobs s WHERE s.id = CAST(l.options ->> 'begin_from' AS BIGINT)) AS source_place,
       (SELECT w.run_dir FROM leases s JOIN workers w ON w.lease_id = s.id
        WHERE s.job_id = CAST(l.options ->> 'begin_from' AS BIGINT) AND NOT coalesce(s.profile, false) AND w.run_dir IS NOT NULL
        ORDER BY s.id DESC, w.node_id LIMIT 1) AS begin_from,
       (SELECT s.spec FROM jobs s WHERE s.id = CAST(l.options ->> 'begin_from' AS BIGINT) AND j.kind = 'infer') AS trained_as, j.owner,
       l.options ->> 'begins' AS begins, CAST(l.options ->> 'joint' AS BIGINT) AS joint,
       (SELECT p.spec FROM jobs p WHERE p.id = CAST(l.options ->> 'joint' AS BIGINT)) AS partner
FROM leases l
JOIN jobs j ON j.id = l.job_id
LEFT JOIN provenance v ON v.job_id = j.id
LEFT JOIN work k ON k.job_id = j.id
WHERE l.id IN (SELECT unnest($1::BIGINT[]))
