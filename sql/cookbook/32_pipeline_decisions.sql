-- What has a job's tuner changed, what was it refused, and why? Put its number in the place of 1.
SELECT ts, rank, stage, action, value, wanted, unit, round(throughput, 1) AS throughput, round(reward, 1) AS reward, controller, why, refused
FROM pipelines
WHERE job_id = 1 AND (action <> 0 OR wanted <> value)
ORDER BY ts, rank, position
