-- Each lease with what its runner reported: when it was granted, trained its first and last step, was told to stop and ended (s since the epoch).
SELECT l.job_id, l.attempt, l.gpu_count, epoch(l.granted_at) AS granted, epoch(l.stop_at) AS told, epoch(l.ended_at) AS ended,
       count(m.step) AS reports, epoch(min(m.ts)) AS first, epoch(max(m.ts)) AS last, min(m.step) AS first_step, max(m.step) AS last_step
FROM leases l LEFT JOIN metrics m ON m.lease_id = l.id AND m.rank = 0 AND m.name = 'loss'
GROUP BY ALL
ORDER BY l.job_id, l.attempt
