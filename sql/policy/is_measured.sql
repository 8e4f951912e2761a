-- Whether the speed of a signature has been measured on GPUs that a pool has. $1: signature, $2: pool.
SELECT EXISTS (FROM speeds s JOIN gpus g ON g.name = s.gpu_name WHERE s.signature = $1 AND g.pool = $2)
