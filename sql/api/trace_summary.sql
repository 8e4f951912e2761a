-- A summary of the jobs of trace $1, in one row.
SELECT
    min(submitted) AS first_submitted,
    max(submitted) AS last_submitted,
    sum(duration * gpus_min) / 3600 AS gpu_hours,
    avg(duration) AS duration_avg,
    median(duration) AS duration_p50,
    max(duration) AS duration_max,
    max(gpus_min) AS gpus_most,
    count(DISTINCT user_name) AS users,
    count(DISTINCT pool) AS pools,
    count(DISTINCT model) AS models,
    count(*) FILTER (demand = 'strict') AS strict,
    count(*) FILTER (demand = 'soft') AS soft
FROM trace_jobs
WHERE trace_id = $1
