-- Workers of leases that move. $1: seconds, $2: the new time (s since the epoch).
UPDATE workers
SET started_at = started_at + to_microseconds(CAST($1 * 1000000 AS BIGINT)),
    ended_at = ended_at + to_microseconds(CAST($1 * 1000000 AS BIGINT))
WHERE lease_id IN (
    SELECT id FROM leases
    WHERE job_id IN (SELECT id FROM jobs WHERE finished_at IS NULL OR epoch(finished_at) > $2)
       OR ended_at >= (SELECT min(granted_at) FROM leases WHERE state <> 'ended')
)
