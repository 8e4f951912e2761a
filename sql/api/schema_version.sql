-- Number of the last migration.
SELECT max(number) FROM migrations
