-- Gangs over hosts meet where the first of them says, and a host that lacks what a job needs to start is not tried again for that job.

ALTER TABLE workers ADD COLUMN port INTEGER;
COMMENT ON COLUMN workers.port IS 'Of the first node of a gang over several: port at which its ranks meet, NULL: not told';

ALTER TABLE jobs ADD COLUMN excluded VARCHAR;
COMMENT ON COLUMN jobs.excluded IS 'JSON: runners on which it is not tried again, as it could not be started there for want of something on that host, and of what';
