-- All GPUs in slices of $step seconds: GPUs under lease, the sum of their measured use, and used memory.
-- $start, $end: s since the epoch.
WITH slices AS (SELECT unnest(range(CAST(ceil(($end - $start) / $step) AS BIGINT))) AS slice),
held AS (
    SELECT s.slice, sum(least(epoch(l.until), $start + (s.slice + 1) * $step, $end) - greatest(epoch(l.since), $start + s.slice * $step))
           / $step AS leased
    FROM slices s JOIN gpu_leased l ON epoch(l.since) < least($start + (s.slice + 1) * $step, $end) AND epoch(l.until) > $start + s.slice * $step
    GROUP BY s.slice
),
sampled AS (
    SELECT floor((epoch(t.ts) - $start) / $step) AS slice, t.gpu_id, avg(t.utilisation) AS used, avg(t.memory_used) AS memory
    FROM telemetry t
    WHERE epoch(t.ts) >= $start AND epoch(t.ts) < $end
    GROUP BY ALL
),
measured AS (SELECT slice, sum(used) AS used, sum(memory) AS memory FROM sampled GROUP BY slice)
SELECT $start + s.slice * $step AS moment, coalesce(h.leased, 0) AS leased, m.used, m.memory
FROM slices s LEFT JOIN held h ON h.slice = s.slice LEFT JOIN measured m ON m.slice = s.slice
ORDER BY s.slice
