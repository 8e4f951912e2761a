-- When a job that stops at a metric is expected to get there, as long as it has not ended: at no step that it has passed.
SELECT j.spec ->> '$.stop.metric' AS metric, (j.spec ->> '$.stop.target')::DOUBLE AS target, coalesce(p.total_steps, j.total_steps) AS maximum,
       greatest(e.iterations, coalesce(p.step, 0)) AS iterations, greatest(e.low, coalesce(p.step, 0)) AS low,
       greatest(e.high, coalesce(p.step, 0)) AS high, e.probability, e.at_step, e.points, e.updated_at
FROM iteration_estimates e
JOIN jobs j ON j.id = e.job_id
LEFT JOIN progress p ON p.job_id = j.id
WHERE e.job_id = $1 AND j.finished_at IS NULL
