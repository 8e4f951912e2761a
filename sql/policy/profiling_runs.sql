-- How long the newest profiling runs of a pool that measured enough took from when their worker lived, the median. $1: pool.
SELECT median(seconds)
FROM (
    SELECT greatest(epoch(l.ended_at - l.started_at), 0) AS seconds
    FROM leases l JOIN jobs j ON j.id = l.job_id
    WHERE j.pool = $1 AND l.profile AND l.outcome = 'profiled' AND l.started_at IS NOT NULL
    ORDER BY l.id DESC
    LIMIT 20
)
