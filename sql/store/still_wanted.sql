-- Whether the checkpoints of a job that a runner reads are still those of before. $1: job, $2: runner, $3: the last of its leases that ended then.
SELECT j.id
FROM jobs j JOIN nodes n ON j.place IN (n.host || ':' || n.home, n.place, n.shared_place)
WHERE j.id = $1 AND n.id = $2 AND j.finished_at IS NULL AND j.bundle IS NULL
  AND $3 = (SELECT coalesce(max(l.id), 0) FROM leases l WHERE l.job_id = j.id AND l.state = 'ended')
  AND NOT EXISTS (FROM leases l WHERE l.id = j.lease_id AND l.started_at IS NOT NULL)
