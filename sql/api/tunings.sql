-- Searches for configurations, the newest first. $1: how many.
SELECT * FROM tunings ORDER BY id DESC LIMIT $1
