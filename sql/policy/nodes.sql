-- Every node, its state, the places whose checkpoints it reads, a line each, the bytes of a checkpoint that it fetches at most,
-- and when it hands itself back.
SELECT id, state, concat_ws(chr(10), host || ':' || home, place, shared_place) AS places, fetch_at_most::DOUBLE AS fetch_at_most, epoch(leaves_at) AS leaves FROM nodes
