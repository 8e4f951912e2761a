-- Leases. $1: which.
SELECT id, granted_at, started_at, expires_at, gpu_count, profile, share <> 'exclusive' AS shared FROM leases WHERE list_contains($1::BIGINT[], id)
