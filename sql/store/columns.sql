-- Every column of our tables with its type, in order.
SELECT table_name, column_name, data_type
FROM duckdb_columns()
WHERE schema_name = 'main' AND NOT internal
ORDER BY table_name, column_index
