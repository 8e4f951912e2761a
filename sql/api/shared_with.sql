-- Who shares GPUs with a job now, and how many; where they take turns, its own turn and the seconds that it has waited. $1: job.
SELECT o.job_id AS job, any_value(j.name) AS name, any_value(o.share) AS share, count(*) AS gpus, any_value(own.turn) AS turn,
       any_value(own.waited_for_turns) AS waited_for_turns
FROM live_shares own JOIN live_shares o ON o.gpu_id = own.gpu_id AND o.job_id <> own.job_id JOIN jobs j ON j.id = o.job_id
WHERE own.job_id = $1
GROUP BY o.job_id
ORDER BY o.job_id
