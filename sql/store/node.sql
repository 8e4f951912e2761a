-- A runner by name.
SELECT id, state, session, host, home, epoch(last_seen) AS last_seen, epoch(leaves_at) AS leaves_at FROM nodes WHERE id = $1
