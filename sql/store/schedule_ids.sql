-- Recurring jobs in force, by number: whose they are, and what they are called.
SELECT id, created_by, name FROM schedules WHERE enabled
