-- The group with which a job shares its input, what came of it in its newest attempt, and who of it runs on a host of the job's.
WITH groups AS (SELECT id, owner, lease_id, spec ->> '$.share.input' AS input FROM jobs WHERE spec ->> '$.share.input' IS NOT NULL)
SELECT j.input, n.made, n.found, n.again, n.bytes, n.saved,
       (SELECT list(DISTINCT o.id ORDER BY o.id)
        FROM groups o
        JOIN leases l ON l.id = o.lease_id AND l.state = 'running'
        JOIN workers v ON v.lease_id = l.id
        JOIN workers w ON w.node_id = v.node_id AND w.lease_id = j.lease_id
        WHERE o.id <> j.id AND o.owner = j.owner AND o.input = j.input) AS beside
FROM groups j LEFT JOIN shared_input_now n ON n.job_id = j.id
WHERE j.id = $1
