-- A runner by name.
SELECT id, state, session, host, home FROM nodes WHERE id = $1
