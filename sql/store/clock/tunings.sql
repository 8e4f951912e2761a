-- Searches for a configuration whose period is not over, or that lie in the future. $1: seconds, $2: the new time (s since the epoch).
UPDATE tunings
SET ts = ts + to_microseconds(CAST($1 * 1000000 AS BIGINT))
WHERE outcome = 'applied' OR epoch(ts) > $2
