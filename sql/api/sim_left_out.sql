-- Jobs of a pool that a replay leaves out, though they were there in its time. $1: pool, $2: s since the epoch.
WITH ready AS (
    SELECT id, epoch(coalesce(eligible_at, submitted_at)) AS ts, finished_at, run_time FROM jobs WHERE pool = $1 AND kind <> 'infer'
),
first_one AS (
    SELECT min(ts) AS ts FROM ready WHERE ts >= $2::DOUBLE AND finished_at IS NOT NULL AND run_time > 0
)
SELECT (SELECT count(*) FROM ready WHERE ts >= $2::DOUBLE AND finished_at IS NULL) AS not_ended,
       (SELECT count(*) FROM ready WHERE ts >= $2::DOUBLE AND finished_at IS NOT NULL AND run_time <= 0) AS never_ran,
       (
           SELECT count(DISTINCT l.job_id)
           FROM leases l JOIN ready r ON r.id = l.job_id, first_one f
           WHERE r.ts < $2::DOUBLE AND (l.ended_at IS NULL OR epoch(l.ended_at) > f.ts)
       ) AS held_before,
       (
           SELECT count(DISTINCT l.job_id)
           FROM leases l JOIN jobs j ON j.id = l.job_id, first_one f
           WHERE j.pool = $1 AND j.kind = 'infer' AND (l.ended_at IS NULL OR epoch(l.ended_at) > f.ts)
       ) AS servers
