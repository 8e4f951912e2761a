-- What happened to the daemon itself in the last day that explains figures which look strange, the newest first.
SELECT ts, kind, reason FROM events
WHERE kind IN ('clock.set', 'daemon.back') AND ts > make_timestamp(epoch_us(now())) - INTERVAL 1 DAY
ORDER BY seq DESC
LIMIT 3
