-- Leases of such jobs, and those that ended while one of now ran: who shares a GPU divides its time. $1: seconds, $2: the new time (s since the epoch).
UPDATE leases
SET granted_at = granted_at + to_microseconds(CAST($1 * 1000000 AS BIGINT)),
    started_at = started_at + to_microseconds(CAST($1 * 1000000 AS BIGINT)),
    expires_at = expires_at + to_microseconds(CAST($1 * 1000000 AS BIGINT)),
    stop_at = stop_at + to_microseconds(CAST($1 * 1000000 AS BIGINT)),
    ended_at = ended_at + to_microseconds(CAST($1 * 1000000 AS BIGINT))
WHERE job_id IN (SELECT id FROM jobs WHERE finished_at IS NULL OR epoch(finished_at) > $2)
   OR ended_at >= (SELECT min(granted_at) FROM leases WHERE state <> 'ended')
