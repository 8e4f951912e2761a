-- Decisions older than $1 (s since the epoch) that no lease refers to; the newest stays, since numbering goes on from it.
DELETE FROM decisions
WHERE epoch(last_ts) < $1 AND id NOT IN (SELECT decision_id FROM leases WHERE decision_id IS NOT NULL) AND id < (SELECT max(id) FROM decisions)
