-- Jobs of a pool that could first run at or after a moment, ran and have ended, to be replayed. $1: pool, $2: s since the epoch.
SELECT j.id, j.name, j.owner, j.model, j.priority, j.demand, j.gpus_min, j.gpus_max, j.gpu_memory::DOUBLE AS gpu_memory,
       epoch(coalesce(j.eligible_at, j.submitted_at)) AS submitted, epoch(j.first_start_at) AS started, epoch(j.finished_at) AS ended,
       j.run_time, j.attained, j.preemptions, j.est_duration AS estimate,
       list(epoch(t.deadline) ORDER BY t.deadline) FILTER (t.job_id IS NOT NULL) AS deadlines,
       list(t.reward ORDER BY t.deadline) FILTER (t.job_id IS NOT NULL) AS rewards
FROM jobs j LEFT JOIN tiers t ON t.job_id = j.id
WHERE j.pool = $1 AND j.finished_at IS NOT NULL AND j.run_time > 0 AND epoch(coalesce(j.eligible_at, j.submitted_at)) >= $2::DOUBLE
GROUP BY ALL
ORDER BY submitted, j.id
