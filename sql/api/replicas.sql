-- The group of replicas that a job is in: who trains, how far, what was lost. $1: job; no row: it is in none.
SELECT any_value(r.least) AS least, any_value(r.most) AS most, any_value(r.global_batch) AS global_batch,
       count(*) FILTER (r.lease_id IS NOT NULL) AS leases, count(*) FILTER (r.lease_id IS NOT NULL AND r.members > 0) AS training,
       max(r.step) AS step, coalesce(max(r.samples), 0) AS samples, coalesce(max(r.lost), 0.0) AS lost, coalesce(max(r.gaps), 0) AS gaps,
       any_value(r.members) FILTER (r.job_id = $1) AS members
FROM replicas_now r
WHERE r.array_id = (SELECT coalesce(array_id, id) FROM jobs WHERE id = $1)
HAVING count(*) > 0
