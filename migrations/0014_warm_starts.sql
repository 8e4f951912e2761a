-- Whether jobs start by a fork from a process that has loaded what they import, and why they do not.

ALTER TABLE leases ADD COLUMN warm BOOLEAN;
ALTER TABLE leases ADD COLUMN cold_because VARCHAR;
COMMENT ON COLUMN leases.warm IS 'Its worker was forked from a process that had loaded what it imports; NULL: it has not started, or its runner does not say';
COMMENT ON COLUMN leases.cold_because IS 'Why its worker was not forked, in words; NULL: it was, or its runner does not say';
