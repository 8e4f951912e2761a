-- How the last deadlines of jobs that have not ended stand, where that is known: when it is, when the job should end, and when it would if it
-- went on now.
SELECT job_id, epoch(deadline) AS at, epoch(est_end) AS est_end, epoch(soonest_end) AS soonest_end, remaining, given_up, deadline_risk
FROM outlook
WHERE deadline_risk IN ('safe', 'at risk', 'missed')
ORDER BY job_id
