-- Jobs that have not ended, or would end in the future. $1: seconds, $2: the new time (s since the epoch).
UPDATE jobs
SET submitted_at = submitted_at + to_microseconds(CAST($1 * 1000000 AS BIGINT)),
    state_since = state_since + to_microseconds(CAST($1 * 1000000 AS BIGINT)),
    eligible_at = eligible_at + to_microseconds(CAST($1 * 1000000 AS BIGINT)),
    first_start_at = first_start_at + to_microseconds(CAST($1 * 1000000 AS BIGINT)),
    not_before = not_before + to_microseconds(CAST($1 * 1000000 AS BIGINT)),
    finished_at = finished_at + to_microseconds(CAST($1 * 1000000 AS BIGINT))
WHERE finished_at IS NULL OR epoch(finished_at) > $2
