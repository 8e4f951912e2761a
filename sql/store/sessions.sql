-- Session in force of each runner.
SELECT id, session FROM nodes
