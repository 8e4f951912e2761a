-- Recent utilisation of a GPU by each kind of job that had it alone, where that differs from the stored value. $1: since (s since the epoch).
-- Of a slot the memory is that of the job's processes, up to what the slot is declared to have, as nothing enforces that: what ran there fits
-- there. Of a GPU the workers tell it themselves. NULL: no more than is known.
SELECT j.signature, g.name AS gpu_name, median(t.utilisation) AS utilisation,
       CASE WHEN any_value(g.kind) = 'cpu'
                 AND max(least(t.memory_used, nullif(g.memory, 0))) > 1.05 * coalesce(any_value(s.peak_memory), 0)
            THEN max(least(t.memory_used, nullif(g.memory, 0))) END AS peak_memory
FROM telemetry t
JOIN leases l ON l.id = t.lease_id
JOIN jobs j ON j.id = l.job_id
JOIN gpus g ON g.id = t.gpu_id
JOIN speeds s ON s.signature = j.signature AND s.gpu_name = g.name
WHERE t.ts > make_timestamp(CAST($1 * 1000000 AS BIGINT)) AND t.ts > l.started_at AND coalesce(l.share, 'exclusive') = 'exclusive'
  AND t.utilisation IS NOT NULL
GROUP BY j.signature, g.name
HAVING count(*) >= 3 AND (coalesce(abs(median(t.utilisation) - any_value(s.utilisation)) > 0.05, true) OR peak_memory IS NOT NULL)
ORDER BY j.signature, g.name
