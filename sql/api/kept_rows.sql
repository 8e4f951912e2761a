-- How many rows are kept that are thinned, and the first moment of each.
SELECT 'telemetry' AS what, count(*) AS rows, min(ts) AS oldest FROM telemetry
UNION ALL
SELECT 'metrics', count(*), min(ts) FROM metrics
UNION ALL
SELECT 'pipelines', count(*), min(ts) FROM pipelines
UNION ALL
SELECT 'decisions', count(*), min(ts) FROM decisions
UNION ALL
SELECT 'events', count(*), min(ts) FROM events
