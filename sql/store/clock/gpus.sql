-- Since when GPUs are in the pool of a backbone. $1: seconds.
UPDATE gpus
SET warm_since = warm_since + to_microseconds(CAST($1 * 1000000 AS BIGINT))
WHERE warm_since IS NOT NULL
