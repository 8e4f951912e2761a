-- Bytes that running queries hold, without what is cached of the file and can be dropped.
SELECT CAST(coalesce(sum(memory_usage_bytes), 0) AS BIGINT) FROM duckdb_memory()
WHERE tag NOT IN ('BASE_TABLE', 'METADATA', 'EXTERNAL_FILE_CACHE', 'OBJECT_CACHE', 'ART_INDEX')
