-- Jobs not ended that are to miss their last deadline, or have: when it is, when they should end, and when they would if they went on now.
SELECT job_id, epoch(deadline) AS at, epoch(est_end) AS est_end, epoch(soonest_end) AS soonest_end, given_up, deadline_risk
FROM outlook
WHERE deadline_risk IN ('at risk', 'missed')
ORDER BY job_id
