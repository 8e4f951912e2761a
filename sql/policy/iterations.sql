-- Iterations that jobs which stop at a metric are expected to need. $1: the jobs.
SELECT job_id, iterations, spread FROM iteration_estimates WHERE list_contains($1::BIGINT[], job_id)
