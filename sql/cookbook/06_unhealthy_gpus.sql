-- Which GPUs can take no job, and why?
SELECT node, idx, name, state, note
FROM gpus_now
WHERE state NOT IN ('free', 'busy')
ORDER BY node, idx
