-- How many times longer models take packed beside others, with the product of the GPUs as in policy/gpus. $1: models.
SELECT model, beside, hash(gpu_name) AS product, slowdown
FROM slowdowns
WHERE kind = 'packed' AND list_contains($1::VARCHAR[], model) AND list_contains($1::VARCHAR[], beside)
