-- The last commit that the database knows of, its time, and when the database was made.
SELECT c.number, epoch(c.committed_at), CAST(m.applied AS VARCHAR) FROM commits c, migrations m WHERE m.number = 1
