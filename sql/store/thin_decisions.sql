-- Decisions older than $1 (s since the epoch) that no lease refers to. The newest stays, since numbering goes on from it, and so does the
-- newest of each pool that says what its policy keeps in mind.
DELETE FROM decisions
WHERE epoch(last_ts) < $1 AND id NOT IN (SELECT decision_id FROM leases WHERE decision_id IS NOT NULL) AND id < (SELECT max(id) FROM decisions)
  AND id NOT IN (SELECT max(id) FROM decisions WHERE memory IS NOT NULL GROUP BY pool)
