-- GPUs of leases. $1: the leases.
SELECT lease_id, gpu_id FROM lease_gpus WHERE list_contains($1::BIGINT[], lease_id)
