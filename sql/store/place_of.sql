-- Host and home of a runner.
SELECT host || ':' || home FROM nodes WHERE id = $1
