-- When a job that has not ended should end, and what becomes of its deadline.
SELECT epoch(est_end) AS est_end, epoch(soonest_end) AS soonest_end, epoch(est_start) AS est_start, remaining, given_up, deadline_risk
FROM outlook
WHERE job_id = $1
