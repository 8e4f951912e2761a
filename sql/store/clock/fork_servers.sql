-- Since when fork servers are what they are, and until when they are kept. $1: seconds.
UPDATE fork_servers
SET since = since + to_microseconds(CAST($1 * 1000000 AS BIGINT)),
    until = until + to_microseconds(CAST($1 * 1000000 AS BIGINT))
