-- Searches that were applied, whose period is over and which have not been measured, the oldest first. $1: now, s since the epoch.
SELECT id, pool, policy, epoch(ts) AS ts, before, after, period, expected, asked_by, why,
       id = max(id) FILTER (outcome NOT IN ('dry-run', 'kept')) OVER (PARTITION BY pool) AS newest
FROM tunings
QUALIFY outcome = 'applied' AND epoch(ts) + period <= $1
ORDER BY id
