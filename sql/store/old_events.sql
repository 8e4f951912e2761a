-- How many events are older than $1 (s since the epoch), and the last of them. A cut by number, so that the rest is whole;
-- the newest event stays in any case, since numbering goes on from it.
SELECT count(*), max(seq) FROM events WHERE epoch(ts) < $1 AND seq < (SELECT max(seq) FROM events)
