-- Known work left of jobs, free of the clock: by steps and pace, else as a duration of the whole job.
-- engine/scheduling/work.py says the same in NumPy, for the policies' ticks: a change here is a change there.
CREATE OR REPLACE VIEW work AS
WITH known AS (
    SELECT model, gpu_count, min(seconds_per_step) AS pace, max(seconds_per_step) AS slowest, avg(duration) AS duration, max(peak_memory) AS memory
    FROM profiles
    GROUP BY model, gpu_count
),
paces AS (
    SELECT signature, gpu_name, compute + (gang - 1) * coalesce(within_node, across_nodes, 0) AS pace, peak_memory AS memory
    FROM speeds
),
measured AS (  -- on the products that the pool has, else on any: the slowest counts
    SELECT p.pool, s.signature,
           coalesce(max(s.pace) FILTER (WHERE g.name IS NOT NULL), max(s.pace)) AS pace,
           coalesce(max(s.memory) FILTER (WHERE g.name IS NOT NULL), max(s.memory)) AS memory
    FROM paces s
    CROSS JOIN (SELECT DISTINCT pool FROM jobs WHERE finished_at IS NULL) p
    LEFT JOIN (SELECT DISTINCT pool, name FROM gpus) g ON g.pool = p.pool AND g.name = s.gpu_name
    GROUP BY p.pool, s.signature
),
steps AS (  -- of jobs that stop at a metric `most` is the maximum; the expected need was fitted some steps ago
    SELECT j.id, coalesce(p.step, 0) AS step, coalesce(p.total_steps, j.total_steps) AS most, p.seconds_per_step AS pace,
           CASE WHEN e.iterations < most THEN greatest(e.iterations, step) ELSE most END AS needed, e.spread
    FROM jobs j
    LEFT JOIN progress p ON p.job_id = j.id
    LEFT JOIN iteration_estimates e ON e.job_id = j.id
    WHERE j.finished_at IS NULL
)
SELECT j.id AS job_id,
       (s.needed - s.step) * coalesce(s.pace, m.pace, k.pace) AS ahead,
       (s.most - s.step) * coalesce(s.pace, m.pace, k.slowest) AS ahead_most,
       s.step / s.needed AS done,
       s.spread,
       coalesce(j.est_duration, k.duration) AS duration,
       CASE WHEN j.gpu_memory > 0 THEN j.gpu_memory ELSE coalesce(m.memory, k.memory) END AS gpu_memory,
       m.signature IS NOT NULL AS measured
FROM jobs j
JOIN steps s ON s.id = j.id
LEFT JOIN known k ON k.model = j.model AND k.gpu_count = j.gpus_min
LEFT JOIN measured m ON m.pool = j.pool AND m.signature = j.signature
WHERE j.finished_at IS NULL;

COMMENT ON VIEW work IS 'Known work left of jobs that have not ended, free of the clock';
COMMENT ON COLUMN work.job_id IS 'Job';
COMMENT ON COLUMN work.ahead IS 'Seconds left by the steps that it is expected to need and their pace, its own, or that of its like or of its model, NULL: not known';
COMMENT ON COLUMN work.ahead_most IS 'The most: up to its maximum of steps, at the pace of the slowest GPUs where it has none of its own';
COMMENT ON COLUMN work.done IS 'Share of its steps that is done, 0 to 1, NULL: not known';
COMMENT ON COLUMN work.spread IS 'Standard deviation of the logarithm of the steps left, of jobs that stop at a metric, NULL: not known';
COMMENT ON COLUMN work.duration IS 'Seconds that the whole job takes, as the submitter or earlier jobs of the model say, NULL: not known';
COMMENT ON COLUMN work.gpu_memory IS 'Memory needed on each GPU (bytes), as asked for or as measured, NULL: not known';
COMMENT ON COLUMN work.measured IS 'The speed of its steps has been measured, in a profiling run or on jobs of the same signature';
