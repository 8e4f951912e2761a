-- Every column of every view and table of ours with its comment, views first. Tables that ad-hoc SQL may not read are left out.
WITH relations AS (
    SELECT 'table' AS kind, table_oid AS oid, table_name AS name, comment
    FROM duckdb_tables()
    WHERE database_name = current_database() AND schema_name = 'main' AND NOT internal AND NOT temporary AND table_name NOT IN ('tokens', 'page_sessions')
    UNION ALL
    SELECT 'view' AS kind, view_oid AS oid, view_name AS name, comment
    FROM duckdb_views()
    WHERE database_name = current_database() AND schema_name = 'main' AND NOT internal AND NOT temporary
)
SELECT r.kind, r.name, coalesce(r.comment, '') AS comment, c.column_name, c.data_type, coalesce(c.comment, '') AS meaning
FROM relations r
JOIN duckdb_columns() c ON c.table_oid = r.oid AND c.table_name = r.name AND c.database_name = current_database()
ORDER BY r.kind DESC, r.name, c.column_index
