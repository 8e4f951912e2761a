-- The groups of replicas that some live leases are in: a row for each live lease, with the daemon's word on its group.
WITH groups AS (
    SELECT DISTINCT coalesce(j.array_id, j.id) AS id FROM leases l JOIN jobs j ON j.id = l.job_id WHERE l.id IN (SELECT unnest($1::BIGINT[]))
), tasks AS (
    SELECT j.id, g.id AS grouped, coalesce(j.array_index, 0) AS place, j.state, CASE WHEN j.finished_at IS NULL AND p.checkpoint_step > 0 THEN p.checkpoint_step END AS saved
    FROM groups g JOIN jobs j ON coalesce(j.array_id, j.id) = g.id LEFT JOIN progress p ON p.job_id = j.id
), held AS (
    SELECT t.grouped, t.place, l.id AS lease, l.state = 'ended' AS ended, l.granted_at, l.ended_at, w.port, n.address, n.host, n.boot_id
    FROM tasks t JOIN leases l ON l.job_id = t.id JOIN workers w ON w.lease_id = l.id JOIN nodes n ON n.id = w.node_id
    WHERE NOT coalesce(l.profile, false)
), words AS (  -- the word is newer after each lease that is granted, reports its port or ends
    SELECT grouped, count(*) + count(*) FILTER (ended) + count(port) AS epoch FROM held GROUP BY grouped
), ends AS (
    SELECT grouped, bool_or(state = 'completed') AS done, coalesce(list(place ORDER BY place) FILTER (saved IS NOT NULL), []) AS saved,
           coalesce(list(saved ORDER BY place) FILTER (saved IS NOT NULL), []) AS saved_steps
    FROM tasks GROUP BY grouped
), befores AS (  -- with the end of those that were given before
    SELECT grouped, lease, granted_at > coalesce(max(coalesce(ended_at, 'infinity')) OVER before, '-infinity') AS alone
    FROM held WINDOW before AS (PARTITION BY grouped ORDER BY lease ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), firsts AS (
    SELECT grouped, max(lease) FILTER (alone) AS lease FROM befores GROUP BY grouped
)
SELECT h.grouped AS "group", w.epoch, e.done, e.saved, e.saved_steps, f.lease AS first, h.lease, h.place, h.address, h.port, h.host, h.boot_id,
       (SELECT max(m.step) FROM metrics m WHERE m.lease_id = h.lease AND m.name = 'members') AS taken
FROM held h JOIN words w ON w.grouped = h.grouped JOIN ends e ON e.grouped = h.grouped JOIN firsts f ON f.grouped = h.grouped
WHERE NOT h.ended
ORDER BY h.grouped, h.place, h.lease
