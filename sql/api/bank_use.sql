-- Whether a tuning asked the prompt bank where to begin: no row, where it did not come to that.
SELECT used, scores, seconds, why_not FROM bank_use WHERE job_id = $1
