-- By how much the number of GPUs under lease changes, at every moment of change (those within $step seconds taken together).
WITH changes AS (
    SELECT greatest(epoch(since), $start) AS moment, 1 AS change FROM gpu_leased WHERE epoch(since) < $end AND epoch(until) > $start
    UNION ALL
    SELECT least(epoch(until), $end) AS moment, -1 AS change FROM gpu_leased WHERE epoch(since) < $end AND epoch(until) > $start
)
SELECT avg(c.moment) AS moment, CAST(sum(c.change) AS BIGINT) AS change
FROM changes c
GROUP BY floor((c.moment - $start) / $step)
ORDER BY moment
