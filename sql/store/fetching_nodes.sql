-- Runners that fetch checkpoints from other hosts.
SELECT id FROM nodes WHERE fetch_at_most IS NOT NULL
