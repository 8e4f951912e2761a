-- Runners with the session in force, their state, and whether they were told to leave.
SELECT id, session, state, leaving FROM nodes
