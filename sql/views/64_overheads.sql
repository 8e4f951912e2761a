-- Costs of suspensions, by model and number of GPUs: the newest 20 of each, with the starts that followed on as many GPUs.
CREATE OR REPLACE VIEW overheads AS
WITH attempts AS (
    SELECT l.id, l.job_id, l.gpu_count, l.granted_at, l.started_at,
           CASE WHEN l.outcome = 'preempted' AND l.started_at IS NOT NULL THEN greatest(epoch(l.ended_at - l.stop_at), 0) END AS leaving
    FROM leases l
    WHERE NOT coalesce(l.profile, false) AND l.share = 'exclusive'  -- others slow a start, and a stop
      AND l.granted_at > make_timestamp(epoch_us(now())) - INTERVAL 14 DAY
),
turns AS (
    SELECT *, lag(leaving) OVER (PARTITION BY job_id ORDER BY id) AS suspend
    FROM attempts
    QUALIFY suspend IS NOT NULL AND started_at IS NOT NULL
),
firsts AS (  -- the first step of each of these; commands report none
    SELECT m.lease_id, min(m.ts) AS ts FROM metrics m SEMI JOIN turns t ON t.id = m.lease_id GROUP BY m.lease_id
),
costs AS (
    SELECT j.pool, j.model, t.gpu_count,
           greatest(t.suspend, 0) AS suspend,  -- of a clock that was set back
           greatest(epoch(coalesce(f.ts, t.started_at) - t.granted_at), 0) AS resume
    FROM turns t
    JOIN jobs j ON j.id = t.job_id
    LEFT JOIN firsts f ON f.lease_id = t.id
    QUALIFY row_number() OVER (PARTITION BY j.pool, j.model, t.gpu_count ORDER BY t.id DESC) <= 20
)
SELECT pool, model, gpu_count, count(*) AS suspensions, avg(suspend) AS suspend, avg(resume) AS resume, avg(suspend + resume) AS overhead
FROM costs
GROUP BY pool, model, gpu_count
ORDER BY pool, model, gpu_count;

COMMENT ON VIEW overheads IS 'Cost of a suspension with its resumption, by pool, model and number of GPUs: means of the newest 20 of the last 14 days';
COMMENT ON COLUMN overheads.pool IS 'Pool';
COMMENT ON COLUMN overheads.model IS 'Model, as in jobs';
COMMENT ON COLUMN overheads.gpu_count IS 'GPUs on which the job went on';
COMMENT ON COLUMN overheads.suspensions IS 'Suspensions with a resumption that were measured';
COMMENT ON COLUMN overheads.suspend IS 'Seconds from the word to stop until its GPUs were free';
COMMENT ON COLUMN overheads.resume IS 'Seconds from the grant of its next lease to the first step reported in it; of a command that reports none, until it had started';
COMMENT ON COLUMN overheads.overhead IS 'The two together';
