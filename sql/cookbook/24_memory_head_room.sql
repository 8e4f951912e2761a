-- Which models come close to the memory of their GPU?
SELECT p.model, p.gpu_name, max(p.peak_memory) AS peak, max(g.memory) AS memory, max(p.peak_memory) / max(g.memory) AS share
FROM profiles p
JOIN gpus g ON g.name = p.gpu_name AND g.memory > 0
GROUP BY p.model, p.gpu_name
ORDER BY share DESC
