-- Recurring jobs in force.
SELECT id, name, cron, enabled, created_by, created_at, last_at FROM schedules WHERE enabled ORDER BY id
