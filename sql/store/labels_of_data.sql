-- The kind of labels of a data set ($2), as jobs of a user ($1) told last.
SELECT labels FROM adapters WHERE owner = $1 AND data = $2 ORDER BY ended_at DESC LIMIT 1
