-- Replicas, each as its newest lease reported last.
CREATE OR REPLACE VIEW replicas_now AS
WITH newest AS (
    SELECT m.job_id, m.lease_id, m.name, arg_max(m.value, m.seq) AS value, max(m.step) AS step
    FROM metrics m
    WHERE m.name IN ('members', 'samples', 'lost_seconds', 'gaps')
      AND m.lease_id = (SELECT max(l.id) FROM leases l WHERE l.job_id = m.job_id AND NOT coalesce(l.profile, false))
    GROUP BY m.job_id, m.lease_id, m.name
)
SELECT coalesce(j.array_id, j.id) AS array_id, j.id AS job_id, j.name AS job, j.owner, j.state, j.lease_id,
       (j.spec ->> '$.replicas.min')::BIGINT AS least, (j.spec ->> '$.replicas.max')::BIGINT AS most,
       (j.spec ->> '$.replicas.global_batch')::BIGINT AS global_batch,
       max(n.step) AS step, max(n.value) FILTER (n.name = 'members')::BIGINT AS members,
       max(n.value) FILTER (n.name = 'samples')::BIGINT AS samples, max(n.value) FILTER (n.name = 'lost_seconds') AS lost,
       max(n.value) FILTER (n.name = 'gaps')::BIGINT AS gaps
FROM jobs j LEFT JOIN newest n ON n.job_id = j.id
WHERE j.spec ->> '$.replicas.max' IS NOT NULL
GROUP BY ALL
ORDER BY array_id, job_id;
COMMENT ON VIEW replicas_now IS 'Replicas, each as its newest lease reported last';
COMMENT ON COLUMN replicas_now.array_id IS 'Group that it is in: the id of its first task';
COMMENT ON COLUMN replicas_now.job_id IS 'Job';
COMMENT ON COLUMN replicas_now.job IS 'Name of the job';
COMMENT ON COLUMN replicas_now.owner IS 'User who submitted it';
COMMENT ON COLUMN replicas_now.state IS 'Present state of the job';
COMMENT ON COLUMN replicas_now.lease_id IS 'Its live lease, NULL: it has none';
COMMENT ON COLUMN replicas_now.least IS 'Members without which the first step is not taken (replicas.min)';
COMMENT ON COLUMN replicas_now.most IS 'Members at most (replicas.max)';
COMMENT ON COLUMN replicas_now.global_batch IS 'Samples of a step (replicas.global_batch)';
COMMENT ON COLUMN replicas_now.step IS 'Steps that it has taken or copied';
COMMENT ON COLUMN replicas_now.members IS 'Members that took its newest step with it; 0: it waits for the others';
COMMENT ON COLUMN replicas_now.samples IS 'Samples of the steps up to its newest';
COMMENT ON COLUMN replicas_now.lost IS 'Seconds that it waited for a group to form, or lost in one that broke';
COMMENT ON COLUMN replicas_now.gaps IS 'Times that the group formed anew while it trained';
