-- Tokens that are accepted.
SELECT digest, name, role, id FROM tokens WHERE NOT revoked
