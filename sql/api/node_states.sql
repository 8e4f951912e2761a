-- States of runners.
SELECT id, state FROM nodes
