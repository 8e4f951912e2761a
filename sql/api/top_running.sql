-- Jobs that hold GPUs.
SELECT * FROM jobs_now WHERE state IN ('profiling', 'assigned', 'starting', 'running', 'suspending') ORDER BY id
