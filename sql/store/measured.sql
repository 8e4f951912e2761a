-- Measurements of jobs that have just completed, beside those known of their model.
SELECT j.model, any_value(g.name) AS gpu_name, any_value(l.gpu_count) AS gpu_count, any_value(j.run_time) AS duration,
       any_value(p.seconds_per_step) AS seconds_per_step, any_value(p.peak_memory) AS peak_memory,
       any_value(o.seconds_per_step) AS old_seconds_per_step, any_value(o.duration) AS old_duration,
       any_value(o.peak_memory) AS old_peak_memory, any_value(o.samples) AS old_samples
FROM jobs j
JOIN leases l ON l.job_id = j.id AND l.attempt = j.attempts
JOIN lease_gpus lg ON lg.lease_id = l.id
JOIN gpus g ON g.id = lg.gpu_id
LEFT JOIN progress p ON p.job_id = j.id
LEFT JOIN profiles o ON o.model = j.model AND o.gpu_name = g.name AND o.gpu_count = l.gpu_count
WHERE j.id IN (SELECT unnest($1::BIGINT[])) AND coalesce(l.share, 'exclusive') = 'exclusive'
GROUP BY j.id, j.model
ORDER BY j.id
