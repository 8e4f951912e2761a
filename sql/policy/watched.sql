-- Jobs that run and stop at a metric: its name and target, whether it is to rise, the maximum of steps, the last step, and the step of
-- the last estimate (NULL: none). A maximum of 0, as a script may report one, leaves nothing to estimate.
SELECT j.id, j.spec ->> '$.stop.metric', (j.spec ->> '$.stop.target')::DOUBLE, coalesce(j.spec ->> '$.stop.mode', 'max') AS mode,
       coalesce(p.total_steps, j.total_steps) AS most, p.step, e.at_step
FROM jobs j
JOIN progress p ON p.job_id = j.id
LEFT JOIN iteration_estimates e ON e.job_id = j.id
WHERE j.finished_at IS NULL AND j.spec ->> '$.stop.metric' IS NOT NULL AND most >= 1
ORDER BY j.id
