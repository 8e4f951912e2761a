-- Tokens that are accepted.
SELECT digest, name, role FROM tokens WHERE NOT revoked
