-- The stages of a job's pipelines as their tuners told last.
SELECT * EXCLUDE (job_id, job, owner, state) FROM pipelines_now WHERE job_id = $1 ORDER BY rank, pipeline, position, unit
