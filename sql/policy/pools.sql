-- Pools that runners offer.
SELECT DISTINCT pool FROM gpus WHERE health <> 'missing' ORDER BY pool
