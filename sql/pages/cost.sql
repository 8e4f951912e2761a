-- What one job costs. $1: job.
SELECT gpu_hours, gpu_cost, stored_bytes, storage_cost, cost FROM costs WHERE job_id = $1
