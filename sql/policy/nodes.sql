-- Every node and its state.
SELECT id, state FROM nodes
