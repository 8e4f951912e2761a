-- Leases on GPUs within the time of the report; only the longest if there are more than $most.
WITH bars AS (
    SELECT h.gpu_id, l.id AS lease_id, l.job_id, j.name, l.attempt, l.outcome, l.stop_reason,
           greatest(epoch(l.granted_at), $start) AS drawn_from, least(coalesce(epoch(l.ended_at), $end), $end) AS drawn_to,
           $jobs IS NULL OR list_contains($jobs, l.job_id) AS chosen
    FROM leases l JOIN lease_gpus h ON h.lease_id = l.id JOIN jobs j ON j.id = l.job_id
    WHERE epoch(l.granted_at) <= $end AND coalesce(epoch(l.ended_at), $end) >= $start
    ORDER BY drawn_to - drawn_from DESC, l.id, h.gpu_id
    LIMIT $most
)
SELECT b.gpu_id, b.lease_id, b.job_id, b.name, b.attempt, b.outcome, b.stop_reason, b.drawn_from AS begins, b.drawn_to AS ends, b.chosen
FROM bars b
ORDER BY b.drawn_from, b.lease_id, b.gpu_id
