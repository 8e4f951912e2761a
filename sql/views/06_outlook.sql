-- Expected starts and ends of jobs that have not ended, and the risk of their deadlines, for all listings, explanations and alarms.
-- An unknown start does not mean an immediate one, so no end follows from it; but a job that would be late even so is at risk, and so is
-- one that was announced to be in time. In the first 10 s of a stay in the queue, or after a pause, its start is not computed yet.
CREATE OR REPLACE VIEW outlook AS
WITH clock AS (SELECT make_timestamp(epoch_us(now())) AS moment),
starts AS (  -- a job that is being stopped, or only profiled, still has to wait for its start
    SELECT j.id, j.deadline, c.moment, e.ran, e.remaining,
           CASE WHEN j.lease_id IS NOT NULL THEN CASE WHEN j.state <> 'suspending' AND l.profile IS DISTINCT FROM true THEN c.moment END
                WHEN w.est_start < c.moment THEN c.moment
                ELSE w.est_start END AS goes_on,
           d.job_id IS NOT NULL AND j.state <> 'suspending' AND l.profile IS DISTINCT FROM true
               AND epoch(c.moment - greatest(j.state_since, j.not_before)) >= 10 AS promised,
           j.lease_id IS NULL AND coalesce(w.code IN ('crowded', 'late', 'outweighed', 'rejected'), false) AS given_up
    FROM jobs j
    CROSS JOIN clock c
    JOIN estimates e ON e.job_id = j.id
    LEFT JOIN leases l ON l.id = j.lease_id
    LEFT JOIN waiting w ON w.job_id = j.id
    LEFT JOIN deadline_promises d ON d.job_id = j.id
    WHERE j.finished_at IS NULL
),
ends AS (  -- further ahead than 30 years no end is worth a figure, and some are no timestamp any more
    SELECT *, to_microseconds(CAST(CASE WHEN remaining < 1e9 THEN remaining END * 1000000 AS BIGINT)) AS takes,
           epoch(deadline) - epoch(moment) - remaining AS slack
    FROM starts
)
SELECT id AS job_id, ran, remaining, goes_on AS est_start, goes_on + takes AS est_end, moment + takes AS soonest_end, deadline, given_up,
       CASE WHEN deadline IS NULL THEN NULL
            WHEN moment > deadline THEN 'missed'
            WHEN given_up OR slack < 0 THEN 'at risk'
            WHEN slack < epoch(goes_on) - epoch(moment) THEN 'at risk'
            WHEN (slack IS NULL OR goes_on IS NULL) AND promised THEN 'at risk'
            WHEN slack IS NULL OR goes_on IS NULL THEN 'unknown'
            ELSE 'safe' END AS deadline_risk
FROM ends;

COMMENT ON VIEW outlook IS 'When jobs that have not ended should start and end, and what becomes of their deadlines: estimates';
COMMENT ON COLUMN outlook.job_id IS 'Job';
COMMENT ON COLUMN outlook.ran IS 'Seconds run so far, over all leases';
COMMENT ON COLUMN outlook.remaining IS 'Estimated seconds of work left on the GPUs it asks for, NULL: not known';
COMMENT ON COLUMN outlook.est_start IS 'When it should go on (UTC): now if it trains, NULL: not known';
COMMENT ON COLUMN outlook.est_end IS 'When it should end (UTC), NULL: not known';
COMMENT ON COLUMN outlook.soonest_end IS 'When it would end if it went on now (UTC), NULL: not known';
COMMENT ON COLUMN outlook.deadline IS 'Last deadline (UTC)';
COMMENT ON COLUMN outlook.given_up IS 'Its policy keeps no GPUs for its deadline';
COMMENT ON COLUMN outlook.deadline_risk IS 'missed, at risk, safe or unknown; NULL: no deadline';
