-- The time, in seconds since the epoch.
SELECT epoch(now())
