-- Events up to number $1, which have been exported.
DELETE FROM events WHERE seq <= $1
