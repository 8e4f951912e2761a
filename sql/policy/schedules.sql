-- Recurring jobs in force with what they submit, and when they last did.
SELECT id, cron, spec, created_by, epoch(created_at), epoch(last_at) FROM schedules WHERE enabled ORDER BY id
