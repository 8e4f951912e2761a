-- The jobs on each GPU now, and how they share it: one row for each live lease and GPU.
CREATE OR REPLACE VIEW live_shares AS
SELECT h.gpu_id, h.node_id AS node, l.id AS lease_id, l.job_id, l.state AS lease_state, coalesce(l.share, 'exclusive') AS share,
       CAST(l.options ->> '$.memory' AS BIGINT) AS memory, l.granted_at,
       CASE WHEN l.share = 'switched' THEN w.turn END AS turn, w.waited AS waited_for_turns
FROM leases l JOIN lease_gpus h ON h.lease_id = l.id
LEFT JOIN workers w ON w.lease_id = h.lease_id AND w.node_id = h.node_id
WHERE l.state <> 'ended';
COMMENT ON VIEW live_shares IS 'Jobs on GPUs now, and the kind of sharing: one row a live lease and GPU';
COMMENT ON COLUMN live_shares.gpu_id IS 'GPU';
COMMENT ON COLUMN live_shares.node IS 'Runner';
COMMENT ON COLUMN live_shares.lease_id IS 'Lease that has not ended';
COMMENT ON COLUMN live_shares.job_id IS 'Job';
COMMENT ON COLUMN live_shares.lease_state IS 'State of the lease';
COMMENT ON COLUMN live_shares.share IS 'exclusive, or how it shares the GPU with others, or did: packed, switched';
COMMENT ON COLUMN live_shares.memory IS 'Memory of the GPU that one that shares it takes (bytes), NULL: not known';
COMMENT ON COLUMN live_shares.granted_at IS 'When the lease was granted (UTC)';
COMMENT ON COLUMN live_shares.turn IS 'Where jobs take turns on the GPU, when last looked at: has (the turn), waits, or behind (the kernel puts others before it)';
COMMENT ON COLUMN live_shares.waited_for_turns IS 'Seconds for which it has waited for turns, NULL: not known';
