-- Every runner, whether it was told to leave, and whether it is to start nothing more.
SELECT id, leaving, state IN ('draining', 'drained') FROM nodes
