-- Jobs for a list. $1: ended ones too, $2: else those ended after (s since the epoch), $3: of this user, $4: in these states,
-- $5: collapse arrays to one row, $6: at most so many, the newest, $7: with a name, or an array's name, like this, $8: with these labels,
-- $9: of these numbers.
SELECT *
FROM jobs_now
WHERE ($1::BOOLEAN OR finished_at IS NULL OR epoch(finished_at) > $2::DOUBLE)
  AND ($3::VARCHAR IS NULL OR owner = $3)
  AND ($4::VARCHAR[] IS NULL OR list_contains($4::VARCHAR[], state))
  AND ($7::VARCHAR IS NULL OR name LIKE $7 ESCAPE '\' OR name LIKE $7 || '[%' ESCAPE '\')
  AND ($8::JSON IS NULL OR id IN (SELECT j.id FROM jobs j WHERE json_contains(j.labels, $8::JSON)))
  AND ($9::BIGINT[] IS NULL OR list_contains($9::BIGINT[], id))
QUALIFY NOT $5::BOOLEAN OR array_id IS NULL OR row_number() OVER (PARTITION BY array_id ORDER BY id) = 1
ORDER BY id DESC
LIMIT $6::BIGINT
