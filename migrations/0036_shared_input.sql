-- The name under which a job shares its input (share: {input: NAME}), as a column: each look of a policy would read all specs for it.

ALTER TABLE jobs ADD COLUMN input VARCHAR;
COMMENT ON COLUMN jobs.input IS 'Name under which it shares its input with other jobs of its owner; NULL: it does not';
UPDATE jobs SET input = spec ->> '$.share.input' WHERE spec ->> '$.share.input' IS NOT NULL;
