-- Steps of the data pipeline that reported last, from the job's lowest rank with one; one step from each of $points slices.
WITH told AS (
    SELECT p.job_id, p.rank, p.pipeline
    FROM pipelines p JOIN jobs j ON j.id = p.job_id
    WHERE ($jobs IS NULL OR list_contains($jobs, j.id)) AND (j.finished_at IS NULL OR epoch(j.finished_at) >= $since)
    QUALIFY row_number() OVER (ORDER BY p.ts DESC, p.job_id DESC, p.rank, p.pipeline) = 1
),
steps AS (
    SELECT p.job_id, p.rank, p.lease_id, p.seq, bool_or(coalesce(p.action, 0) <> 0) AS acted, bool_or(p.refused IS NOT NULL) AS held
    FROM pipelines p JOIN told t ON t.job_id = p.job_id AND t.rank = p.rank AND t.pipeline = p.pipeline
    GROUP BY p.job_id, p.rank, p.lease_id, p.seq
),
sliced AS (
    SELECT *, ntile($points) OVER (ORDER BY lease_id, seq) AS slice FROM steps
),
chosen AS (
    SELECT * FROM sliced QUALIFY row_number() OVER (PARTITION BY slice ORDER BY held DESC, acted DESC, seq) = 1
)
SELECT c.job_id, j.name, c.lease_id, c.seq, epoch(any_value(p.ts)) AS ts, c.acted, c.held, any_value(p.controller) AS controller,
       any_value(p.throughput) AS throughput, any_value(p.demand) AS demand, any_value(p.reward) AS reward, any_value(p.cpus) AS cpus,
       any_value(p.cpu_used) AS cpu_used, any_value(p.memory_used) AS memory_used, any_value(p.memory_total) AS memory_total,
       list({'stage': p.stage, 'workers': p.workers, 'unit': p.unit, 'value': p.value} ORDER BY p.position, p.unit) AS stages
FROM chosen c
JOIN jobs j ON j.id = c.job_id
JOIN pipelines p ON p.job_id = c.job_id AND p.lease_id = c.lease_id AND p.rank = c.rank AND p.seq = c.seq
GROUP BY c.job_id, j.name, c.lease_id, c.seq, c.acted, c.held
ORDER BY c.lease_id, c.seq
