-- Recurring jobs in force, by number.
SELECT id FROM schedules WHERE enabled
