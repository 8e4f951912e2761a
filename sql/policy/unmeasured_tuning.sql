-- The newest search of a pool that was applied, unless it has been measured. $1: pool.
SELECT id, policy, epoch(ts) AS ts, before, after, period, expected, asked_by
FROM tunings
WHERE pool = $1 AND outcome = 'applied' AND id = (SELECT max(id) FROM tunings WHERE pool = $1 AND outcome NOT IN ('dry-run', 'kept'))
