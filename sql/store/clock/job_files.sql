-- Sizes of jobs' files that would hold only in the future. $1: seconds, $2: the new time (s since the epoch).
UPDATE job_files
SET since = since + to_microseconds(CAST($1 * 1000000 AS BIGINT))
WHERE epoch(since) > $2
