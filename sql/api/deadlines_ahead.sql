-- Jobs with deadlines still ahead that come before a job: how many wait before it for the same GPUs, and how many hold some. $1: the job.
-- Not those that are put off to a later time, or are given up.
SELECT count(*) FILTER (j.lease_id IS NULL AND w.position < coalesce(m.position, w.position + 1)
                        AND w.code NOT IN ('planned', 'crowded', 'late', 'outweighed', 'rejected')) AS waiting,
       count(*) FILTER (j.lease_id IS NOT NULL) AS holding
FROM jobs me
LEFT JOIN waiting m ON m.job_id = me.id
JOIN jobs j ON j.pool = me.pool AND j.id <> me.id
LEFT JOIN waiting w ON w.job_id = j.id
WHERE me.id = $1 AND j.finished_at IS NULL AND j.demand <> 'best-effort' AND j.deadline > make_timestamp(epoch_us(now()))
