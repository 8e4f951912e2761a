-- With whose adapter a job began.
SELECT b.source, b.state, b.why, coalesce(s.data, 'no longer in the bank') AS source_data
FROM beginnings b LEFT JOIN adapters s ON s.job_id = b.source
WHERE b.job_id = $1
