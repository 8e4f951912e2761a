-- Runners with the session in force and their state.
SELECT id, session, state FROM nodes
