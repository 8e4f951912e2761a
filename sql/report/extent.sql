-- How many jobs the report is about, and the time they span.
SELECT count(*) AS jobs, count(*) FILTER (finished_at IS NULL) AS unfinished,
       epoch(min(submitted_at)) AS first_submitted, epoch(max(finished_at)) AS last_finished
FROM jobs j
WHERE ($jobs IS NULL OR list_contains($jobs, j.id)) AND (j.finished_at IS NULL OR epoch(j.finished_at) >= $since)
