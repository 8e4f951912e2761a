-- Ended leases by outcome.
SELECT coalesce(outcome, 'unknown'), count(*) FROM leases WHERE state = 'ended' GROUP BY 1 ORDER BY 1
