-- What runs now, how far is it, and when will it end?
SELECT id, name, owner, nodes, gpus, round(progress, 1) AS progress, loss, eta, eta_at
FROM jobs_now
WHERE gpus > 0
ORDER BY eta NULLS LAST
