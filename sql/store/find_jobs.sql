-- Jobs named in `after:`, by number, name or idempotency key: the newest of each owner.
SELECT w.word, CASE w.word WHEN CAST(j.id AS VARCHAR) THEN 'number' WHEN j.name THEN 'name' ELSE 'key' END AS fits, j.owner,
       max(j.id) AS job, arg_max(j.state, j.id) AS state
FROM (SELECT unnest($1::VARCHAR[]) AS word) w
JOIN jobs j ON j.name = w.word OR CAST(j.id AS VARCHAR) = w.word OR j.idempotency_key = w.word
GROUP BY w.word, fits, j.owner
