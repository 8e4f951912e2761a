-- Every column of our tables with its type, in order. Of views none: their largest numbers would be computed for nobody.
SELECT table_name, column_name, data_type
FROM duckdb_columns()
WHERE schema_name = 'main' AND NOT internal AND table_name IN (SELECT table_name FROM duckdb_tables() WHERE NOT internal)
ORDER BY table_name, column_index
