-- Times of first starts in a pool, by model and whether by a fork, means of the newest 20: until the worker lived, from then to the first
-- step. And whether the next start is expected to be of that sort: by a fork while the newest was one, and its server is still kept. $1: pool.
WITH firsts AS (
    SELECT l.id, l.job_id, j.model, epoch(l.started_at - l.granted_at) AS worker, l.started_at, l.ended_at, coalesce(l.warm, false) AS warm
    FROM leases l JOIN jobs j ON j.id = l.job_id
    WHERE j.pool = $1 AND NOT coalesce(l.profile, false) AND coalesce(l.share, 'exclusive') = 'exclusive'
    QUALIFY row_number() OVER (PARTITION BY l.job_id ORDER BY l.id) = 1
),
newest AS (
    SELECT * FROM firsts WHERE started_at IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY model, warm ORDER BY id DESC) <= 20
),
expected AS (
    SELECT model, arg_max(warm AND coalesce(ended_at, started_at) > make_timestamp(epoch_us(now())) - INTERVAL 10 MINUTE, id) AS warm
    FROM newest GROUP BY model
),
steps AS (  -- commands report none
    SELECT m.lease_id, min(m.ts) AS ts FROM metrics m SEMI JOIN newest n ON n.id = m.lease_id GROUP BY m.lease_id
)
SELECT n.model, avg(greatest(n.worker, 0)), avg(greatest(epoch(coalesce(s.ts, n.started_at) - n.started_at), 0)), count(*),
       n.warm, any_value(n.warm = e.warm)
FROM newest n JOIN expected e USING (model) LEFT JOIN steps s ON s.lease_id = n.id
GROUP BY n.model, n.warm
ORDER BY n.model, n.warm
