-- Jobs that a job waits for.
SELECT d.needs, j.name, j.state, d.mode, d.met FROM dependencies d JOIN jobs j ON j.id = d.needs WHERE d.job_id = $1 ORDER BY d.needs
