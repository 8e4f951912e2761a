-- Adapters of which the bank has $1 newer ones of the same user, model, form and data.
SELECT job_id FROM adapters WHERE gone IS NULL
QUALIFY row_number() OVER (PARTITION BY owner, recipe, revision, petl, data ORDER BY ended_at DESC, job_id DESC) > $1
