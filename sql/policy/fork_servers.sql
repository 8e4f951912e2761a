-- Fork servers of backbones: runner, backbone, state, and since when (s since the epoch).
SELECT node_id, backbone, state, epoch(since) FROM fork_servers WHERE backbone <> ''
