-- When the newest search of a pool was decided, and its number. $1: pool.
SELECT epoch(max(ts)) AS ts, max(id) AS id FROM tunings WHERE pool = $1 AND outcome <> 'dry-run'
