-- Of each signature the newest job whose adapter is in the bank.
SELECT j.signature, max(a.job_id) AS job
FROM adapters a JOIN jobs j ON j.id = a.job_id
WHERE a.gone IS NULL AND j.signature IS NOT NULL
GROUP BY j.signature
ORDER BY j.signature
