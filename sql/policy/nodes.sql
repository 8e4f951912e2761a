-- Every node, its state, and the places whose checkpoints it reads, a line each.
SELECT id, state, concat_ws(chr(10), host || ':' || home, place, shared_place) AS places FROM nodes
