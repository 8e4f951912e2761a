-- Checkpoints that the daemon wants of runners, as other hosts need them: a lease elsewhere waits for them, or the runner hands its node
-- back and no other host reads them. By runner: the job, the last of its leases that ended, the directory as in assignments, and the most
-- bytes.
WITH readers AS (
    SELECT j.id AS job, n.id AS node, n.fetch_at_most, n.leaving AND n.leaves_at IS NOT NULL AS handed_back,
           CASE WHEN j.place = n.shared_place THEN n.checkpoints || '/' || j.id || '/checkpoints' END AS checkpoints
    FROM jobs j
    JOIN nodes n ON j.place IN (n.host || ':' || n.home, n.place, n.shared_place)
    WHERE j.finished_at IS NULL AND j.bundle IS NULL AND j.not_sent IS NULL AND n.state IN ('up', 'draining', 'drained')
)
SELECT r.node, r.job, (SELECT coalesce(max(l.id), 0) FROM leases l WHERE l.job_id = r.job AND l.state = 'ended') AS "after",
       r.checkpoints, r.fetch_at_most
FROM readers r
JOIN jobs j ON j.id = r.job
WHERE r.fetch_at_most > 0 AND (
    EXISTS (
        FROM leases l JOIN workers w ON w.lease_id = l.id
        WHERE l.id = j.lease_id AND NOT coalesce(l.profile, false) AND l.stop_reason IS NULL AND w.state IN ('granted', 'starting')
          AND w.node_id NOT IN (SELECT o.node FROM readers o WHERE o.job = r.job)
          AND (j.spec ->> '$.replicas.max' IS NULL OR NOT EXISTS (  -- one of a group that trains copies its state
              SELECT 1 FROM jobs o JOIN metrics m ON m.lease_id = o.lease_id
              WHERE o.array_id = j.array_id AND o.id <> j.id AND m.name = 'members')))
    OR (j.lease_id IS NULL AND r.handed_back AND NOT EXISTS (FROM readers o WHERE o.job = r.job AND NOT o.handed_back))
)
ORDER BY r.job
