-- Pools whose history may be asked for: the default one, and all that have had GPUs or jobs.
SELECT 'default' AS pool UNION SELECT pool FROM gpus UNION SELECT pool FROM jobs ORDER BY pool
