-- What was in force of a policy when another configuration was put in its place, the oldest first. $1: pool, $2: policy.
SELECT before FROM tunings WHERE pool = $1 AND policy = $2 AND outcome IN ('applied', 'measured', 'rolled back') ORDER BY id
