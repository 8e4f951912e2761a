-- Whether a tuning asked the prompt bank where to begin, as its first attempt reported: no row, where it did not come to that.
SELECT max(value) FILTER (name = 'bank_used') = 1 AS used, max(value) FILTER (name = 'bank_scores')::BIGINT AS scores,
       max(value) FILTER (name = 'bank_seconds') AS seconds, max(value) FILTER (name = 'bank_longest') AS longest,
       max(value) FILTER (name = 'bank_budget') AS budget
FROM metrics
WHERE job_id = $1 AND name LIKE 'bank\_%' ESCAPE '\'
HAVING count(*) FILTER (name = 'bank_used') > 0
