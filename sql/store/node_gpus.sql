-- GPUs that a runner has offered.
SELECT id FROM gpus WHERE node_id = $1
