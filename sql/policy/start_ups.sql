-- What first starts in fresh processes took in a pool, by model, means of the newest 20: until the worker lived, from then to the first step. $1: pool.
WITH firsts AS (
    SELECT l.id, l.job_id, j.model, epoch(l.started_at - l.granted_at) AS worker, l.started_at
    FROM leases l JOIN jobs j ON j.id = l.job_id
    WHERE j.pool = $1 AND NOT coalesce(l.profile, false) AND coalesce(l.share, 'exclusive') = 'exclusive'
      AND NOT coalesce(l.warm, false)
    QUALIFY row_number() OVER (PARTITION BY l.job_id ORDER BY l.id) = 1
),
newest AS (
    SELECT * FROM firsts WHERE started_at IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY model ORDER BY id DESC) <= 20
),
steps AS (  -- commands report none
    SELECT m.lease_id, min(m.ts) AS ts FROM metrics m SEMI JOIN newest n ON n.id = m.lease_id GROUP BY m.lease_id
)
SELECT n.model, avg(greatest(n.worker, 0)), avg(greatest(epoch(coalesce(s.ts, n.started_at) - n.started_at), 0)), count(*)
FROM newest n LEFT JOIN steps s ON s.lease_id = n.id
GROUP BY n.model
ORDER BY n.model
