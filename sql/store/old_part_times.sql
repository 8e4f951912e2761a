-- Pieces from the $3-th on of the profile of a model ($1: signature) on a device ($2), which has so many now.
DELETE FROM part_times WHERE signature = $1 AND device = $2 AND part >= $3
