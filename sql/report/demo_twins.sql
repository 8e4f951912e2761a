-- Losses of the demo's preempted job beside those of its undisturbed twin, step by step: how many, and how many are equal.
WITH losses AS (
    SELECT j.name, m.step, arg_max(m.value, m.seq + 1000000 * m.lease_id) AS loss
    FROM metrics m JOIN jobs j ON j.id = m.job_id
    WHERE m.name = 'loss' AND m.rank = 0 AND j.name IN ('questions', 'questions-undisturbed')
    GROUP BY j.name, m.step
)
SELECT count(*), count(*) FILTER (a.loss = b.loss)
FROM losses a JOIN losses b ON b.step = a.step
WHERE a.name = 'questions' AND b.name = 'questions-undisturbed'
