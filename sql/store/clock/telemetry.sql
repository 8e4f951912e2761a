-- Samples that would lie in the future. $1: seconds, $2: the new time (s since the epoch).
UPDATE telemetry
SET ts = ts + to_microseconds(CAST($1 * 1000000 AS BIGINT))
WHERE epoch(ts) > $2
