-- What does it cost to suspend a job and to resume it later, by model and number of GPUs?
SELECT model, gpu_count, sum(suspensions) AS suspensions, round(avg(suspend), 1) AS suspend, round(avg(resume), 1) AS resume,
       round(avg(overhead), 1) AS overhead
FROM overheads
GROUP BY model, gpu_count
ORDER BY overhead DESC
