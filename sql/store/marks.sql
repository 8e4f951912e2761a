-- Last record taken of each rank of the given leases.
SELECT lease_id, rank, seq FROM report_marks WHERE list_contains($1::BIGINT[], lease_id)
