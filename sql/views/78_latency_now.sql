-- Latencies that clients of servers saw: of each minute the newest report of each lease, which covers the minute so far.
CREATE OR REPLACE VIEW latency_now AS
WITH told AS (
    SELECT m.job_id, m.lease_id, m.ts,
           max(m.value) FILTER (m.name = 'minute') AS number,
           max(m.value) FILTER (m.name = 'p50') AS p50,
           max(m.value) FILTER (m.name = 'p95') AS p95,
           max(m.value) FILTER (m.name = 'p99') AS p99,
           max(m.value) FILTER (m.name = 'queue') AS queue,
           max(m.value) FILTER (m.name = 'requests') AS requests,
           max(m.value) FILTER (m.name = 'refused') AS refused,
           max(m.value) FILTER (m.name = 'errors') AS errors
    FROM metrics m JOIN jobs j ON j.id = m.job_id
    WHERE j.kind = 'infer'
    GROUP BY m.job_id, m.lease_id, m.seq, m.ts
    HAVING number BETWEEN 0 AND 1e9  -- a task's own code may report anything under that name
),
newest AS (
    SELECT * FROM told QUALIFY row_number() OVER (PARTITION BY lease_id, number ORDER BY ts DESC, requests DESC) = 1
)
SELECT n.job_id, j.name, make_timestamp(CAST(n.number * 60000000 AS BIGINT)) AS minute, n.p50, n.p95, n.p99,
       TRY_CAST(n.queue AS BIGINT) AS queue, TRY_CAST(n.requests AS BIGINT) AS requests, TRY_CAST(n.refused AS BIGINT) AS refused,
       TRY_CAST(n.errors AS BIGINT) AS errors, n.lease_id
FROM newest n JOIN jobs j ON j.id = n.job_id
ORDER BY n.job_id, minute, n.lease_id;

COMMENT ON VIEW latency_now IS 'Latencies that clients of jobs that serve a model saw, by job and minute; the present minute so far';
COMMENT ON COLUMN latency_now.job_id IS 'Job';
COMMENT ON COLUMN latency_now.name IS 'Its name';
COMMENT ON COLUMN latency_now.minute IS 'Beginning of the minute (UTC), by the clock of its host';
COMMENT ON COLUMN latency_now.p50 IS 'Half of the requests were answered within so many seconds, NULL: none was';
COMMENT ON COLUMN latency_now.p95 IS '95 % of the requests were answered within so many seconds';
COMMENT ON COLUMN latency_now.p99 IS '99 % of the requests were answered within so many seconds';
COMMENT ON COLUMN latency_now.queue IS 'Requests that waited or were computed at once, the most of the minute';
COMMENT ON COLUMN latency_now.requests IS 'Requests that were answered, with an error or not';
COMMENT ON COLUMN latency_now.refused IS 'Requests for which the queue had no room';
COMMENT ON COLUMN latency_now.errors IS 'Requests whose answer was an error';
COMMENT ON COLUMN latency_now.lease_id IS 'Lease under which it served';
