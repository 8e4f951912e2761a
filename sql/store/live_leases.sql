-- Those of the given leases that have not ended.
SELECT id, job_id, share, state, stop_reason, epoch(stop_at) AS stop_at, CAST(options ->> 'begin_from' AS BIGINT) AS begin_from,
       options ->> 'begins' AS begins
FROM leases
WHERE id IN (SELECT unnest($1::BIGINT[])) AND state <> 'ended'
