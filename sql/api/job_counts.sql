-- Jobs by state.
SELECT state, count(*) FROM jobs GROUP BY state ORDER BY state
