-- Sessions of the page that are accepted, the newest first.
SELECT s.digest, coalesce(t.name, s.name) AS name, coalesce(t.role, s.role) AS role, s.token_id, s.port, epoch(s.expires_at) AS expires_at
FROM page_sessions s LEFT JOIN tokens t ON t.id = s.token_id
WHERE NOT coalesce(t.revoked, false) AND s.expires_at > make_timestamp(epoch_us(now()))
ORDER BY s.created_at DESC, s.digest
