-- The name of a shared directory.
SELECT name, path FROM shared_places WHERE path = $1
