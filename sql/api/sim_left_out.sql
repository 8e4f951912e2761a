-- Jobs of a pool that a replay leaves out: not ended yet, and ended without ever running. $1: pool, $2: s since the epoch.
SELECT count(*) FILTER (finished_at IS NULL) AS not_ended, count(*) FILTER (finished_at IS NOT NULL AND run_time <= 0) AS never_ran
FROM jobs
WHERE pool = $1 AND epoch(coalesce(eligible_at, submitted_at)) >= $2::DOUBLE
