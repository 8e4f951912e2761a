-- Moments at which runners were heard. $1: seconds.
UPDATE nodes
SET joined_at = joined_at + to_microseconds(CAST($1 * 1000000 AS BIGINT)),
    last_seen = last_seen + to_microseconds(CAST($1 * 1000000 AS BIGINT)),
    leaves_at = leaves_at + to_microseconds(CAST($1 * 1000000 AS BIGINT))
