-- Of records older than $1 (s since the epoch) every tenth step, and the last of each lease and name.
DELETE FROM metrics
WHERE epoch(ts) < $1 AND step % 10 <> 0
  AND (lease_id, rank, name, step) NOT IN (SELECT (lease_id, rank, name, max(step)) FROM metrics GROUP BY lease_id, rank, name)
