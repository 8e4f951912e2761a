-- The newest list of prices.
SELECT what, gpu_name, price FROM prices WHERE ts = (SELECT max(ts) FROM prices)
