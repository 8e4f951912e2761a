-- A GPU that was ever offered to a pool.
SELECT id FROM gpus WHERE pool = $1 LIMIT 1
