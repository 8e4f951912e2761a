-- Jobs whose checkpoints a runner reads, and could not send. $1: the runner.
SELECT j.id FROM jobs j JOIN nodes n ON j.place IN (n.host || ':' || n.home, n.place, n.shared_place)
WHERE n.id = $1 AND j.finished_at IS NULL AND j.not_sent IS NOT NULL
