-- Configurations that harmed, and were taken back. $1: pool, $2: policy, $3: since when, s since the epoch.
SELECT after FROM tunings WHERE pool = $1 AND policy = $2 AND outcome = 'rolled back' AND epoch(ts) + period >= $3
