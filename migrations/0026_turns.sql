-- Who has the turn on a GPU that jobs take turns on, and for how long each has waited: its timeout does not count that.
ALTER TABLE workers ADD COLUMN turn VARCHAR;
ALTER TABLE workers ADD COLUMN waited DOUBLE;
COMMENT ON COLUMN workers.turn IS 'Of a lease that is switched, when last looked at: has (the turn), waits, or behind (the kernel puts others before it)';
COMMENT ON COLUMN workers.waited IS 'Seconds for which it has waited for turns, NULL: not known';
