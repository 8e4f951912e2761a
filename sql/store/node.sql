-- A runner by name.
SELECT id, state, session, boot_id FROM nodes WHERE id = $1
