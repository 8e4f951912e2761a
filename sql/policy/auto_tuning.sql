-- Pools that tune themselves, and how.
SELECT pool, enabled, period, objective, set_by, ts FROM auto_tuning QUALIFY row_number() OVER (PARTITION BY pool ORDER BY id DESC) = 1
