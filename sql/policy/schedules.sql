-- Recurring jobs in force with what they submit.
SELECT id, cron, spec, created_by, epoch(created_at) FROM schedules WHERE enabled ORDER BY id
