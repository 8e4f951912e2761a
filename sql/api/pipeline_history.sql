-- All steps of pipeline $3 of rank $2 of job $1, or $4 spread evenly over them: first those in which something was set or refused.
WITH steps AS (
    SELECT lease_id, seq, ts, bool_or(coalesce(action, 0) <> 0) AS acted, bool_or(refused IS NOT NULL) AS held
    FROM pipelines
    WHERE job_id = $1 AND rank = $2 AND pipeline = $3
    GROUP BY lease_id, seq, ts
),
sliced AS (
    SELECT *, ntile($4) OVER (ORDER BY lease_id, seq) AS slice FROM steps
),
chosen AS (
    SELECT * FROM sliced QUALIFY row_number() OVER (PARTITION BY slice ORDER BY held DESC, acted DESC, seq) = 1
)
SELECT c.lease_id, c.seq, c.ts, c.acted, c.held, any_value(p.controller) AS controller, any_value(p.throughput) AS throughput,
       any_value(p.demand) AS demand, any_value(p.reward) AS reward, any_value(p.cpus) AS cpus, any_value(p.cpu_used) AS cpu_used,
       any_value(p.memory_used) AS memory_used, any_value(p.memory_total) AS memory_total,
       list({'stage': p.stage, 'workers': p.workers, 'unit': p.unit, 'value': p.value} ORDER BY p.position, p.unit) AS stages
FROM chosen c
JOIN pipelines p ON p.lease_id = c.lease_id AND p.seq = c.seq AND p.rank = $2 AND p.pipeline = $3 AND p.job_id = $1
GROUP BY c.lease_id, c.seq, c.ts, c.acted, c.held
ORDER BY c.lease_id, c.seq
