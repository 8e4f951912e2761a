-- Which running jobs wait for data, and which stage of their pipeline is it that limits them?
SELECT job_id, job, rank, stage AS bottleneck, workers, round(1000 * latency, 2) AS milliseconds, round(throughput, 1) AS throughput,
       round(demand, 1) AS demand, round(cpu_used, 2) AS cores, cpus AS of_cores, controller
FROM pipelines_now
WHERE state = 'running' AND bottleneck
ORDER BY throughput / demand NULLS LAST, job_id, rank
