-- By how much the number of GPUs under lease changes, at every moment of change (those within $step seconds taken together).
WITH changes AS (
    SELECT greatest(epoch(l.granted_at), $start) AS moment, l.gpu_count AS change
    FROM leases l
    WHERE epoch(l.granted_at) < $end AND coalesce(epoch(l.ended_at), $end) > $start
    UNION ALL
    SELECT least(coalesce(epoch(l.ended_at), $end), $end) AS moment, -l.gpu_count AS change
    FROM leases l
    WHERE epoch(l.granted_at) < $end AND coalesce(epoch(l.ended_at), $end) > $start
)
SELECT avg(c.moment) AS moment, CAST(sum(c.change) AS BIGINT) AS change
FROM changes c
GROUP BY floor((c.moment - $start) / $step)
ORDER BY moment
