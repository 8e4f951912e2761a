-- Pools with jobs whose back-off has ended between $1 and $2 (s since the epoch).
SELECT DISTINCT pool FROM jobs WHERE state = 'pending' AND epoch(not_before) > $1 AND epoch(not_before) <= $2
