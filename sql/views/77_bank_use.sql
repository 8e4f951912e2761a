-- Use of the prompt bank by tunings, as the first attempt of each reported: its initial prompt, or why it began without the bank.
CREATE OR REPLACE VIEW bank_use AS
WITH told AS (
    SELECT job_id, max(value) FILTER (name = 'bank_used') = 1 AS used, max(value) FILTER (name = 'bank_scores')::BIGINT AS scores,
           max(value) FILTER (name = 'bank_seconds') AS seconds, max(value) FILTER (name = 'bank_longest') AS longest,
           max(value) FILTER (name = 'bank_budget') AS budget
    FROM metrics
    WHERE name IN ('bank_used', 'bank_scores', 'bank_seconds', 'bank_longest', 'bank_budget')
    GROUP BY job_id
)
SELECT j.id AS job_id, j.name AS job, j.owner, j.backbone, t.used, t.scores, t.seconds, t.longest, t.budget,
       CASE WHEN NOT t.used THEN format('a lookup may take {:.0f} s, more than 20 % of the time until the deadline ({:.0f} s)',
                                        t.longest, greatest(t.budget, 0.0)) END AS why_not
FROM told t JOIN jobs j ON j.id = t.job_id
WHERE t.used IS NOT NULL
ORDER BY j.id DESC;
COMMENT ON VIEW bank_use IS 'Use of the prompt bank by tunings, or why they began without it';
COMMENT ON COLUMN bank_use.job_id IS 'Job';
COMMENT ON COLUMN bank_use.job IS 'Name of the job';
COMMENT ON COLUMN bank_use.owner IS 'User of the job';
COMMENT ON COLUMN bank_use.backbone IS 'LLM that it tunes for';
COMMENT ON COLUMN bank_use.used IS 'Whether it began with a prompt of the bank';
COMMENT ON COLUMN bank_use.scores IS 'Prompts that were scored; of a bank that was not used, to find how long one takes';
COMMENT ON COLUMN bank_use.seconds IS 'Seconds that the lookup took, NULL: there was none';
COMMENT ON COLUMN bank_use.longest IS 'Seconds of the longest lookup that the bank could need, NULL: the job has no deadline, or the bank was used';
COMMENT ON COLUMN bank_use.budget IS 'Seconds that a lookup might take: 20 % of the time until the deadline, NULL: as above';
COMMENT ON COLUMN bank_use.why_not IS 'Why the bank was not used, NULL: it was';
