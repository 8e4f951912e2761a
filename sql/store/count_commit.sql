-- Count the transaction that is about to be committed: $1 its number, $2 its time (µs since the epoch).
UPDATE commits SET number = $1, committed_at = make_timestamp($2)
