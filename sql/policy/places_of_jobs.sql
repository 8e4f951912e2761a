-- Where the checkpoints of jobs lie; jobs without one have no row, nor have replicas while another one lives, whose state they copy. $1: the jobs.
SELECT j.id, j.place
FROM jobs j
WHERE list_contains($1::BIGINT[], j.id) AND j.place IS NOT NULL
  AND NOT (j.array_id IS NOT NULL AND j.spec ->> '$.replicas.max' IS NOT NULL
           AND EXISTS (SELECT 1 FROM jobs o WHERE o.array_id = j.array_id AND o.id <> j.id AND o.lease_id IS NOT NULL))
