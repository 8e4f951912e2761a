-- What a policy keeps from one decision to the next stands with the decision, so that a restart and a forecast decide as the daemon does.

ALTER TABLE decisions ADD COLUMN memory JSON;
COMMENT ON COLUMN decisions.memory IS 'What the policy keeps for its next decision, null in JSON: nothing; NULL: what the decision before says';
