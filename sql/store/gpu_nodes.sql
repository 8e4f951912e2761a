-- Runner of each of the given GPUs.
SELECT id, node_id FROM gpus WHERE id IN (SELECT unnest($1::VARCHAR[]))
