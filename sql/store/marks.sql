-- Last record taken of each rank of the given leases.
SELECT lease_id, rank, seq FROM report_marks WHERE lease_id IN (SELECT unnest($1::BIGINT[]))
