-- Jobs of a pool to be replayed: they could first run at or after a time, ran and have ended. No servers,
-- whose end does not depend on work. $1: pool, $2: s since the epoch.
-- `work`: GPU-seconds that the job would have taken alone; beside others, of whose time `attained` has half, it was slower.
-- For a job that took turns it is its steps times the duration of a step alone.
WITH used AS (SELECT model, max(utilisation) AS utilisation FROM speeds GROUP BY model),
slowed AS (
    SELECT l.job_id, avg(coalesce(s.slowdown, greatest(1.0, a.utilisation + b.utilisation))) AS times
    FROM leases l JOIN lease_gpus h ON h.lease_id = l.id
    JOIN lease_gpus g ON g.gpu_id = h.gpu_id AND g.lease_id <> h.lease_id JOIN leases o ON o.id = g.lease_id
    JOIN jobs j ON j.id = l.job_id JOIN jobs p ON p.id = o.job_id
    LEFT JOIN (SELECT model, beside, kind, max(slowdown) AS slowdown FROM slowdowns GROUP BY ALL) s
           ON s.model = j.model AND s.beside = p.model AND s.kind = l.share
    LEFT JOIN used a ON a.model = j.model LEFT JOIN used b ON b.model = p.model
    WHERE l.share = 'packed' AND o.share <> 'exclusive' AND l.granted_at < o.ended_at AND o.granted_at < l.ended_at
    GROUP BY l.job_id
), stepped AS (
    SELECT j.id AS job_id, max(p.step * s.compute * j.gpus_min) AS work
    FROM jobs j JOIN leases l ON l.job_id = j.id AND l.share = 'switched'
    JOIN progress p ON p.job_id = j.id JOIN speeds s ON s.signature = j.signature
    GROUP BY j.id
)
SELECT j.id, j.name, j.owner, j.model, j.priority, j.demand, j.gpus_min, j.gpus_max, j.gpu_memory::DOUBLE AS gpu_memory,
       epoch(coalesce(j.eligible_at, j.submitted_at)) AS submitted, epoch(j.first_start_at) AS started, epoch(j.finished_at) AS ended,
       j.run_time, j.attained, j.preemptions, j.est_duration AS estimate, coalesce(j.share, '') AS share,
       j.kind, h.step AS steps,
       CASE WHEN o.work IS NOT NULL THEN o.work
            WHEN w.times IS NULL THEN j.attained
            ELSE 2 * j.attained - j.run_time * j.gpus_min + 2 * (j.run_time * j.gpus_min - j.attained) / w.times END AS work,
       list(epoch(t.deadline) ORDER BY t.deadline) FILTER (t.job_id IS NOT NULL) AS deadlines,
       list(t.reward ORDER BY t.deadline) FILTER (t.job_id IS NOT NULL) AS rewards
FROM jobs j LEFT JOIN tiers t ON t.job_id = j.id LEFT JOIN slowed w ON w.job_id = j.id
LEFT JOIN stepped o ON o.job_id = j.id LEFT JOIN progress h ON h.job_id = j.id
WHERE j.pool = $1 AND j.kind <> 'infer' AND j.finished_at IS NOT NULL AND j.run_time > 0
      AND epoch(coalesce(j.eligible_at, j.submitted_at)) >= $2::DOUBLE
GROUP BY ALL
ORDER BY submitted, j.id
