-- Every runner, and whether it was told to leave.
SELECT id, leaving FROM nodes
