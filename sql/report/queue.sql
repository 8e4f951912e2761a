-- Changes of the numbers of waiting and running jobs (those within $step seconds are joined).
WITH chosen AS (
    SELECT j.id
    FROM jobs j
    WHERE ($jobs IS NULL OR list_contains($jobs, j.id)) AND (j.finished_at IS NULL OR epoch(j.finished_at) >= $since)
),
stays AS (
    SELECT CASE e.after WHEN 'submitted' THEN 'blocked' WHEN 'pending' THEN 'waiting' ELSE 'running' END AS series,
           e.after, epoch(e.ts) AS since, lead(epoch(e.ts)) OVER (PARTITION BY e.job_id ORDER BY e.seq) AS until
    FROM events e JOIN chosen c ON c.id = e.job_id
    WHERE e.kind = 'job.state'
),
shown AS (
    SELECT s.series, greatest(s.since, $start) AS since, least(coalesce(s.until, $end), $end) AS until
    FROM stays s
    WHERE s.after NOT IN ('completed', 'failed', 'cancelled') AND coalesce(s.until, $end) > $start
),
changes AS (
    SELECT s.series, s.since AS moment, 1 AS change FROM shown s
    UNION ALL
    SELECT s.series, s.until AS moment, -1 AS change FROM shown s
)
SELECT c.series, avg(c.moment) AS moment, CAST(sum(c.change) AS BIGINT) AS change
FROM changes c
GROUP BY c.series, floor((c.moment - $start) / $step)
HAVING sum(c.change) <> 0
ORDER BY c.series, moment
