-- Causal models of pools: pairs of cause and effect, each model as it learnt last.
WITH pairs AS (
    SELECT m.pool, m.policy, m.objective, m.samples, unnest(from_json(m.edges, '[["VARCHAR"]]')) AS pair
    FROM causal_models m
)
SELECT pool, policy, objective, samples, pair[1] AS cause, pair[2] AS effect
FROM pairs
ORDER BY pool, policy, objective, cause, effect
