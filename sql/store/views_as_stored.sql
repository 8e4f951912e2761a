-- The views as the database has them, column by column: what they select, their types, all that is said of them.
SELECT v.view_name, v.sql, v.comment, c.column_name, c.data_type, c.comment
FROM duckdb_views() v
JOIN duckdb_columns() c ON c.table_oid = v.view_oid AND c.table_name = v.view_name AND c.database_name = v.database_name
WHERE v.database_name = current_database() AND NOT v.internal AND NOT v.temporary
ORDER BY v.view_name, c.column_index
