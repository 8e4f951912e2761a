-- How did each controller do: what did its pipelines deliver of what was wanted, and how often did the guard refuse?
WITH steps AS (
    SELECT DISTINCT controller, job_id, lease_id, rank, seq, throughput, demand, memory_used / nullif(memory_total, 0) AS memory, refused FROM pipelines
)
SELECT controller, count(DISTINCT job_id) AS jobs, count(*) AS steps, round(avg(least(throughput / demand, 1)), 3) AS of_demand,
       round(max(memory), 3) AS most_memory, count(refused) AS refusals
FROM steps
GROUP BY controller
ORDER BY of_demand DESC NULLS LAST
