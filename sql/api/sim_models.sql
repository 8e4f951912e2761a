-- What models use of the GPUs of a pool that they have alone: shares of 1, NULL: not measured. $1: pool.
SELECT s.model, max(s.utilisation) AS utilisation, max(CASE WHEN g.memory > 0 THEN s.peak_memory / g.memory ELSE 0.0 END) AS memory
FROM speeds s JOIN (SELECT name, min(memory) AS memory FROM gpus WHERE pool = $1 GROUP BY name) g ON g.name = s.gpu_name
GROUP BY s.model
ORDER BY s.model
