-- Jobs not ended whose estimated end lies behind their last deadline, with words.
WITH ends AS (
    SELECT j.id, j.deadline, coalesce(w.est_start, make_timestamp(epoch_us(now()))) + to_seconds(coalesce(e.remaining, 0)) AS est_end
    FROM jobs j JOIN estimates e ON e.job_id = j.id LEFT JOIN waiting w ON w.job_id = j.id
    WHERE j.deadline IS NOT NULL
)
SELECT id,
       'expected to end ' || CAST(ceil(epoch(est_end - deadline)) AS BIGINT) || ' s after its deadline of '
       || strftime(deadline, '%Y-%m-%d %H:%M:%S') || ' UTC: raise its priority, or give it GPUs'
FROM ends
WHERE est_end > deadline
ORDER BY id
