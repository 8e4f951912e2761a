-- Jobs named in `after:`, by number, name or idempotency key: the newest of each.
WITH wanted AS (SELECT unnest($1::VARCHAR[]) AS word)
SELECT w.word, max(j.id) AS job, arg_max(j.state, j.id) AS state
FROM wanted w JOIN jobs j ON j.name = w.word OR CAST(j.id AS VARCHAR) = w.word OR j.idempotency_key = w.word
GROUP BY w.word
