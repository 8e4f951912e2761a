-- Jobs with deadlines: met, missed or at risk, by how much, and the reward.
CREATE OR REPLACE VIEW slo AS
WITH rewards AS (
    SELECT t.job_id, max(t.reward) AS possible, max(t.reward) FILTER (j.state = 'completed' AND j.finished_at <= t.deadline) AS earned,
           min(t.deadline) FILTER (t.deadline >= coalesce(j.finished_at, make_timestamp(epoch_us(now())))) AS next_deadline
    FROM tiers t JOIN jobs j ON j.id = t.job_id
    GROUP BY t.job_id
)
SELECT n.id, n.name, n.owner, n.pool, n.demand, n.state, n.deadline, n.eta_at, n.deadline_risk AS verdict,
       CASE WHEN n.finished_at IS NOT NULL OR n.eta_at IS NOT NULL THEN greatest(epoch(n.eta_at - n.deadline), 0)
            WHEN o.soonest_end > n.deadline THEN epoch(o.soonest_end - n.deadline)
            WHEN n.deadline_risk = 'missed' THEN epoch(make_timestamp(epoch_us(now())) - n.deadline) END AS tardiness,
       r.next_deadline, coalesce(r.earned, 0) AS reward_earned, r.possible AS reward_possible
FROM jobs_now n
LEFT JOIN rewards r ON r.job_id = n.id
LEFT JOIN outlook o ON o.job_id = n.id
WHERE n.deadline IS NOT NULL;
COMMENT ON VIEW slo IS 'Jobs with deadlines: met, missed or at risk, by how much, and the reward';
COMMENT ON COLUMN slo.id IS 'Number of the job';
COMMENT ON COLUMN slo.name IS 'Name';
COMMENT ON COLUMN slo.owner IS 'User who submitted it';
COMMENT ON COLUMN slo.pool IS 'Pool';
COMMENT ON COLUMN slo.demand IS 'soft or strict';
COMMENT ON COLUMN slo.state IS 'Present state';
COMMENT ON COLUMN slo.deadline IS 'Last deadline (UTC)';
COMMENT ON COLUMN slo.eta_at IS 'When it should end, or ended (UTC)';
COMMENT ON COLUMN slo.verdict IS 'met, missed, safe, at risk or unknown';
COMMENT ON COLUMN slo.tardiness IS 'Seconds after the last deadline at which it ended or should end, at least as many if that is not known; 0: in time, NULL: not known';
COMMENT ON COLUMN slo.next_deadline IS 'Earliest deadline step that it can still reach (UTC); of an ended job, the one it reached';
COMMENT ON COLUMN slo.reward_earned IS 'Reward of the earliest step that it was done by';
COMMENT ON COLUMN slo.reward_possible IS 'Largest reward of its steps';
