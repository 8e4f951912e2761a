-- GPU-seconds that leases have had since they run, each GPU's time divided among all who run on it. $1: leases, $2: now (s since the epoch).
WITH clock AS (SELECT make_timestamp(CAST($2 * 1000000 AS BIGINT)) AS moment),
mine AS (
    SELECT l.id, h.gpu_id, l.started_at AS since
    FROM leases l JOIN lease_gpus h ON h.lease_id = l.id
    WHERE list_contains($1::BIGINT[], l.id) AND l.started_at IS NOT NULL
),
span AS (SELECT gpu_id, min(since) AS since FROM mine GROUP BY gpu_id),
residents AS (
    SELECT s.gpu_id, o.started_at AS since, least(coalesce(o.ended_at, c.moment), c.moment) AS until
    FROM clock c, span s JOIN lease_gpus h ON h.gpu_id = s.gpu_id JOIN leases o ON o.id = h.lease_id
    WHERE o.started_at IS NOT NULL AND least(coalesce(o.ended_at, c.moment), c.moment) > greatest(s.since, o.started_at)
),
moments AS (SELECT gpu_id, since AS moment FROM residents UNION SELECT gpu_id, until FROM residents),
pieces AS (SELECT gpu_id, moment, lead(moment) OVER (PARTITION BY gpu_id ORDER BY moment) AS until FROM moments),
divided AS (
    SELECT p.gpu_id, p.moment, epoch(any_value(p.until) - p.moment) / count(*) AS seconds
    FROM pieces p JOIN residents r ON r.gpu_id = p.gpu_id AND r.since <= p.moment AND r.until >= p.until
    GROUP BY p.gpu_id, p.moment
)
SELECT m.id AS lease_id, coalesce(sum(d.seconds), 0.0) AS service
FROM mine m LEFT JOIN divided d ON d.gpu_id = m.gpu_id AND d.moment >= m.since
GROUP BY m.id
