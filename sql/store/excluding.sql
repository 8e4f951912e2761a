-- Jobs that have not ended and are not tried on a runner, with all runners on which they are not.
SELECT id, excluded FROM jobs WHERE finished_at IS NULL AND excluded IS NOT NULL AND list_contains(json_keys(excluded), $1)
