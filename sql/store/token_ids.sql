-- Tokens by number.
SELECT id FROM tokens
