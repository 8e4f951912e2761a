-- Every GPU as it is now, but for those whose runner has left.
SELECT * FROM gpus_now WHERE state <> 'offline' ORDER BY node, idx
