-- Where jobs have left their adapters: the place of their checkpoints, and the run directory of their newest lease.
SELECT j.id, j.place,
       (SELECT w.run_dir FROM leases s JOIN workers w ON w.lease_id = s.id
        WHERE s.job_id = j.id AND NOT coalesce(s.profile, false) AND w.run_dir IS NOT NULL
        ORDER BY s.id DESC, w.node_id LIMIT 1) AS run_dir
FROM jobs j
WHERE j.id IN (SELECT unnest($1::BIGINT[]))
