-- Every GPU as it is now.
SELECT * FROM gpus_now ORDER BY node, idx
