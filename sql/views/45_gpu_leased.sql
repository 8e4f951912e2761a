-- Times at which each GPU was under lease, by any job: leases that share it, or follow each other without a gap, are one row.
CREATE OR REPLACE VIEW gpu_leased AS
WITH parts AS (
    SELECT gpu_id, node, since, until,
           coalesce(since > max(until) OVER (PARTITION BY gpu_id ORDER BY since, lease_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), true) AS begins,
           lease_id
    FROM gpu_time
),
numbered AS (
    SELECT *, count(*) FILTER (begins) OVER (PARTITION BY gpu_id ORDER BY since, lease_id) AS part FROM parts
)
SELECT gpu_id, any_value(node) AS node, min(since) AS since, max(until) AS until
FROM numbered
GROUP BY gpu_id, part;
COMMENT ON VIEW gpu_leased IS 'When each GPU was under lease, whoever held it: leases that share it, or follow each other without a gap, are one row';
COMMENT ON COLUMN gpu_leased.gpu_id IS 'GPU';
COMMENT ON COLUMN gpu_leased.node IS 'Runner';
COMMENT ON COLUMN gpu_leased.since IS 'From when on (UTC)';
COMMENT ON COLUMN gpu_leased.until IS 'Until when, or now (UTC)';
