-- The memory limit of the whole database, in bytes.
SELECT parse_formatted_bytes(current_setting('memory_limit'))
