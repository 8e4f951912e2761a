-- What the causal model of a pool is made of. $1: pool, $2: policy, $3: objective, $4: version.
SELECT learnt FROM causal_models WHERE pool = $1 AND policy = $2 AND objective = $3 AND version = $4
