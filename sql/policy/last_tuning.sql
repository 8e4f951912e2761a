-- When the newest search of a pool was decided. $1: pool.
SELECT epoch(max(ts)) AS ts FROM tunings WHERE pool = $1 AND outcome <> 'dry-run'
