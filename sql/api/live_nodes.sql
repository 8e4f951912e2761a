-- Runners that can be told to leave.
SELECT id FROM nodes WHERE state IN ('up', 'draining', 'drained') ORDER BY id
