-- What is known of pairs. $1: models.
SELECT model, beside, gpu_name, kind, slowdown, samples FROM slowdowns WHERE model IN (SELECT unnest($1::VARCHAR[]))
