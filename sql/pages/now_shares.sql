-- Who is on which GPU, the first who came first.
SELECT gpu_id, job_id, share, turn, epoch(granted_at) AS since FROM live_shares ORDER BY gpu_id, lease_id
