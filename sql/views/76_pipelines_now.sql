-- The stages of each job's data pipelines as their tuners told last, with the stage that limits the throughput.
CREATE OR REPLACE VIEW pipelines_now AS
WITH last_leases AS (
    SELECT job_id, max(lease_id) AS lease_id FROM pipelines GROUP BY job_id
),
newest AS (
    SELECT p.job_id, p.lease_id, p.rank, p.pipeline, max(p.seq) AS seq
    FROM pipelines p JOIN last_leases l ON l.job_id = p.job_id AND l.lease_id = p.lease_id
    GROUP BY p.job_id, p.lease_id, p.rank, p.pipeline
)
SELECT p.job_id, j.name AS job, j.owner, j.state, p.rank, p.pipeline, p.stage, p.position, p.workers, p.unit, p.value,
       -- The busiest of those that compute; none where the training gets nearly all that it would take, or where all were idle.
       p.workers > 0 AND p.starved + p.blocked < 0.99 AND (p.demand IS NULL OR p.throughput < 0.95 * p.demand)
           AND p.stage = first_value(p.stage) OVER (
               PARTITION BY p.job_id, p.lease_id, p.rank, p.pipeline
               ORDER BY CASE WHEN p.workers > 0 THEN p.starved + p.blocked ELSE 9 END, p.latency DESC NULLS FIRST, p.position) AS bottleneck,
       p.latency, p.cpu, p.wait, p.items, CASE WHEN p.workers > 0 THEN greatest(1 - p.starved - p.blocked, 0) END AS busy,
       p.starved, p.blocked, p.queue, p.queue_bytes,
       p.throughput, p.demand, p.reward, p.cpus, p.cpu_used, p.memory_used, p.memory_total, p.controller, p.why, p.refused, p.ts AS told_at
FROM pipelines p
JOIN newest n ON n.job_id = p.job_id AND n.lease_id = p.lease_id AND n.rank = p.rank AND n.pipeline = p.pipeline AND n.seq = p.seq
JOIN jobs j ON j.id = p.job_id
ORDER BY p.job_id, p.rank, p.pipeline, p.position;
COMMENT ON VIEW pipelines_now IS 'The stages of each job''s data pipelines as their tuners told last, with the stage that limits the throughput';
COMMENT ON COLUMN pipelines_now.job_id IS 'Job';
COMMENT ON COLUMN pipelines_now.job IS 'Name of the job';
COMMENT ON COLUMN pipelines_now.owner IS 'User who submitted it';
COMMENT ON COLUMN pipelines_now.state IS 'Present state of the job: of one that does not run this is how its pipeline was left';
COMMENT ON COLUMN pipelines_now.rank IS 'Rank whose pipeline it is';
COMMENT ON COLUMN pipelines_now.pipeline IS 'Name of the pipeline, where a process has several';
COMMENT ON COLUMN pipelines_now.stage IS 'Name of the stage';
COMMENT ON COLUMN pipelines_now.position IS 'Place of the stage in the order of the data, from 0';
COMMENT ON COLUMN pipelines_now.workers IS 'Workers of the stage';
COMMENT ON COLUMN pipelines_now.unit IS 'Unit of the value: workers, or MiB that the stage may hold; NULL: nothing of it is set';
COMMENT ON COLUMN pipelines_now.value IS 'Value in force, in that unit';
COMMENT ON COLUMN pipelines_now.bottleneck IS 'This stage limits the throughput; in no stage: the training does, it gets 95 % of what it would take, or all were idle';
COMMENT ON COLUMN pipelines_now.latency IS 'Seconds of one item in the stage; NULL: none was finished';
COMMENT ON COLUMN pipelines_now.cpu IS 'Seconds of CPU time of one item';
COMMENT ON COLUMN pipelines_now.wait IS 'Seconds of one item that were neither CPU time nor waiting for a core: disk, network';
COMMENT ON COLUMN pipelines_now.items IS 'Items a second that the stage finished';
COMMENT ON COLUMN pipelines_now.busy IS 'Share (0 to 1) of its workers'' time that was neither starved nor blocked; NULL: it has none, it only holds data';
COMMENT ON COLUMN pipelines_now.starved IS 'Share (0 to 1) of its workers'' time in which they had no input';
COMMENT ON COLUMN pipelines_now.blocked IS 'Share (0 to 1) of its workers'' time in which its output was full';
COMMENT ON COLUMN pipelines_now.queue IS 'Items that wait at its output';
COMMENT ON COLUMN pipelines_now.queue_bytes IS 'Bytes of those items';
COMMENT ON COLUMN pipelines_now.throughput IS 'Samples a second that the pipeline delivers';
COMMENT ON COLUMN pipelines_now.demand IS 'Samples a second that the training would take if it never waited; NULL: not bounded';
COMMENT ON COLUMN pipelines_now.reward IS 'Throughput, no more than the demand, times the share of memory that is free';
COMMENT ON COLUMN pipelines_now.cpus IS 'Cores that the process may use';
COMMENT ON COLUMN pipelines_now.cpu_used IS 'Cores that the pipeline keeps busy';
COMMENT ON COLUMN pipelines_now.memory_used IS 'Memory in use by pipeline and training (bytes)';
COMMENT ON COLUMN pipelines_now.memory_total IS 'Memory that they may use (bytes)';
COMMENT ON COLUMN pipelines_now.controller IS 'Controller that decides';
COMMENT ON COLUMN pipelines_now.why IS 'Why it wanted that, in words';
COMMENT ON COLUMN pipelines_now.refused IS 'Changes that the guard did not allow, and why; NULL: it allowed all';
COMMENT ON COLUMN pipelines_now.told_at IS 'When the tuner told it (UTC); it tells a step that changes nothing every 10 s';
