-- Studies of the simulator, the newest first. $1: at most so many.
SELECT study, any_value(trace) AS trace, list(DISTINCT policy ORDER BY policy) AS policies, count(*) AS runs,
       count(*) FILTER (status = 'failed') AS failed, max(ran_at) AS ran_at, arg_max(ran_by, id) AS ran_by
FROM sim_runs
GROUP BY study
ORDER BY max(id) DESC
LIMIT $1
