-- A runner by name.
SELECT id, state, session, host, home, epoch(last_seen) AS last_seen FROM nodes WHERE id = $1
