-- Recurring jobs in force by user and name.
SELECT id, created_by, name, cron FROM schedules WHERE enabled
