-- Tokens, without what would let anybody in.
SELECT id, name, role, created_at, revoked FROM tokens ORDER BY id
