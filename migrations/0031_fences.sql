-- Runners that stop their jobs when they have not heard the daemon for a while.

ALTER TABLE nodes ADD COLUMN fence_after DOUBLE;
COMMENT ON COLUMN nodes.fence_after IS 'Seconds without the daemon after which the jobs of its runner are stopped there, NULL: they go on';
