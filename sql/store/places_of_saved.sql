-- Of jobs that have saved on runners: the place of their checkpoint so far, and now, and whether more is known of the one before.
-- $1: jobs, $2: the runner of each, $3: where it says that they lie, '': it does not. A job stays in a place that its runner reads.
SELECT j.id, j.place,
       CASE WHEN s.told <> '' THEN s.told
            WHEN j.place IN (n.host || ':' || n.home, n.place, n.shared_place) THEN j.place
            ELSE coalesce(n.shared_place, n.place, n.host || ':' || n.home) END,
       j.bundle IS NOT NULL OR j.not_sent IS NOT NULL OR j.saved_bytes IS NOT NULL
FROM (SELECT unnest($1::BIGINT[]) AS job, unnest($2::VARCHAR[]) AS node, unnest($3::VARCHAR[]) AS told) s
JOIN jobs j ON j.id = s.job
JOIN nodes n ON n.id = s.node
