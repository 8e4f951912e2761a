-- What beginnings brought, of the jobs' signatures: steps from the backbone over steps with the adapter, the geometric mean; of pairs that
-- were not undone more often than kept.
SELECT s.signature AS source, j.signature AS job, exp(avg(ln(t.measured)) FILTER (t.outcome <> 'undone')) AS gain
FROM transfers t JOIN jobs s ON s.id = t.from_job JOIN jobs j ON j.id = t.job_id
WHERE NOT t.same_data AND (t.measured > 0 OR t.outcome = 'undone')
GROUP BY s.signature, j.signature
HAVING count(*) FILTER (t.outcome = 'undone') <= count(t.measured) FILTER (t.outcome <> 'undone')
