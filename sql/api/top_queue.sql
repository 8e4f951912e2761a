-- The queue, in the order in which it is served.
SELECT * FROM queue ORDER BY position NULLS LAST, id LIMIT 200
