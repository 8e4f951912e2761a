-- Which jobs stop at a metric, when is each expected to get there, and how sure is that?
SELECT j.id, j.name, j.spec ->> '$.stop.metric' AS metric, (j.spec ->> '$.stop.target')::DOUBLE AS target, p.metric AS value, p.step,
       e.iterations AS expected, e.low, e.high, j.total_steps AS maximum, round(e.probability, 2) AS probability
FROM iteration_estimates e
JOIN jobs j ON j.id = e.job_id
JOIN progress p ON p.job_id = j.id
WHERE j.finished_at IS NULL
ORDER BY e.probability, j.id
