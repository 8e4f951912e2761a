-- Specs of the jobs of leases.
SELECT l.id, j.spec FROM leases l JOIN jobs j ON j.id = l.job_id WHERE l.id IN (SELECT unnest($1::BIGINT[]))
