-- The newest sample of each GPU, of the last minute.
SELECT gpu_id, node_id, utilisation, memory_used
FROM telemetry
WHERE ts > make_timestamp(epoch_us(now())) - INTERVAL 1 MINUTE
QUALIFY row_number() OVER (PARTITION BY gpu_id ORDER BY ts DESC) = 1
ORDER BY gpu_id
