-- Jobs with deadlines ahead of them that come before a job: how many wait before it, and how many hold GPUs of its pool. $1: the job.
SELECT count(*) FILTER (j.lease_id IS NULL AND (w.position < coalesce(m.position, w.position + 1))) AS waiting,
       count(*) FILTER (j.lease_id IS NOT NULL) AS holding
FROM jobs me
LEFT JOIN waiting m ON m.job_id = me.id
JOIN jobs j ON j.pool = me.pool AND j.id <> me.id
LEFT JOIN waiting w ON w.job_id = j.id
WHERE me.id = $1 AND j.finished_at IS NULL AND j.demand <> 'best-effort' AND j.deadline > make_timestamp(epoch_us(now()))
