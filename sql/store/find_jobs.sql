-- Jobs named in `after:`, by number, name, name of their array or idempotency key: the newest of each owner, of an array all tasks.
WITH words AS (SELECT unnest($1::VARCHAR[]) AS word),
found AS (
    SELECT w.word, CASE w.word WHEN CAST(j.id AS VARCHAR) THEN 'number' WHEN j.name THEN 'name' ELSE 'key' END AS fits,
           j.owner, j.id AS thing, j.id AS job, j.state, j.kind
    FROM words w
    JOIN jobs j ON j.name = w.word OR CAST(j.id AS VARCHAR) = w.word OR j.idempotency_key = w.word
    UNION ALL
    SELECT w.word, 'name', j.owner, j.array_id, j.id, j.state, j.kind
    FROM words w
    JOIN jobs j ON split_part(j.name, '[', 1) = w.word
    WHERE j.array_id IS NOT NULL
)
SELECT word, fits, owner, job, state, kind
FROM found
QUALIFY thing = max(thing) OVER (PARTITION BY word, fits, owner)
ORDER BY word, fits, owner, job
