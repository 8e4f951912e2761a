-- Loss of rank 0 by step and attempt, for the $most jobs that reported last; about $points of each attempt.
WITH reported AS (
    SELECT m.job_id, m.lease_id, m.seq, m.step, m.value, m.ts
    FROM metrics m JOIN jobs j ON j.id = m.job_id
    WHERE m.rank = 0 AND m.name IN ('loss', 'train_loss')
      AND ($jobs IS NULL OR list_contains($jobs, j.id)) AND (j.finished_at IS NULL OR epoch(j.finished_at) >= $since)
),
latest AS (
    SELECT r.job_id, count(*) OVER () AS curves
    FROM reported r
    GROUP BY r.job_id
    ORDER BY max(r.ts) DESC, r.job_id DESC
    LIMIT $most
),
ranked AS (
    SELECT r.job_id, r.lease_id, r.step, r.value, k.curves, count(*) OVER (PARTITION BY r.lease_id) AS reports,
           row_number() OVER (PARTITION BY r.lease_id ORDER BY r.seq) AS place
    FROM reported r JOIN latest k ON k.job_id = r.job_id
)
SELECT r.job_id, j.name, r.lease_id, l.attempt, r.step, r.value, r.curves
FROM ranked r JOIN jobs j ON j.id = r.job_id JOIN leases l ON l.id = r.lease_id
WHERE r.place = r.reports OR (r.place - 1) % CAST(ceil(r.reports / CAST($points AS DOUBLE)) AS BIGINT) = 0
ORDER BY r.job_id, r.lease_id, r.place
