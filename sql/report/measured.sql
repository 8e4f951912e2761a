-- Measured use in slices of $step seconds: GPUs' worth of computing (the sum of each GPU's average).
WITH samples AS (
    SELECT floor((epoch(t.ts) - $start) / $step) AS slice, t.gpu_id, avg(t.utilisation) AS used
    FROM telemetry t
    WHERE t.utilisation IS NOT NULL AND epoch(t.ts) >= $start AND epoch(t.ts) < $end
    GROUP BY 1, 2
)
SELECT $start + s.slice * $step AS moment, sum(s.used) AS gpus
FROM samples s
GROUP BY s.slice
ORDER BY s.slice
