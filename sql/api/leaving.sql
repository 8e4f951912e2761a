-- Runners that will hand their nodes back: of a job that holds a lease those where it is, else all of its pool. $1: job.
SELECT DISTINCT n.id, epoch(n.leaves_at)
FROM jobs j
JOIN gpus g ON g.pool = j.pool
JOIN nodes n ON n.id = g.node_id AND n.leaves_at IS NOT NULL AND n.state = 'up'
WHERE j.id = $1
  AND (j.lease_id IS NULL OR EXISTS (FROM workers w WHERE w.lease_id = j.lease_id AND w.node_id = n.id))
ORDER BY n.id
