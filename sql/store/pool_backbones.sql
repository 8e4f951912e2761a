-- What is kept warm in a pool. $1: pool.
SELECT backbone FROM pool_backbones WHERE pool = $1
