-- States of each job with begin and end, from the events; while it waits, a new row whenever it waits for something else.
CREATE OR REPLACE VIEW job_states AS
WITH turned AS (  -- by how much the clock was set up to an event, in all: events keep the time that was shown
    SELECT seq, sum((detail ->> '$.seconds')::DOUBLE) OVER (ORDER BY seq) AS seconds FROM events WHERE kind = 'clock.set'
),
steps AS (
    SELECT e.*, CASE WHEN e.kind = 'job.state' THEN e.after END AS entered, coalesce(t.seconds, 0) AS turned
    FROM events e ASOF LEFT JOIN turned t ON e.seq >= t.seq
    WHERE e.kind IN ('job.state', 'job.waiting')
)
SELECT e.job_id, last_value(e.entered IGNORE NULLS) OVER history AS state, e.ts AS since, lead(e.ts) OVER history AS until,
       coalesce(lead(epoch(e.ts) - e.turned) OVER history,
                epoch(make_timestamp(epoch_us(now()))) - coalesce((SELECT max_by(seconds, seq) FROM turned), 0))
           - epoch(e.ts) + e.turned AS seconds, e.reason, e.actor, e.lease_id
FROM steps e
WINDOW history AS (PARTITION BY e.job_id ORDER BY e.seq);
COMMENT ON VIEW job_states IS 'States of each job with begin and end, from the events';
COMMENT ON COLUMN job_states.job_id IS 'Job';
COMMENT ON COLUMN job_states.state IS 'State';
COMMENT ON COLUMN job_states.since IS 'When it entered it (UTC)';
COMMENT ON COLUMN job_states.until IS 'When it left it (UTC), NULL: it is in it';
COMMENT ON COLUMN job_states.seconds IS 'Seconds in it';
COMMENT ON COLUMN job_states.reason IS 'Why it entered it';
COMMENT ON COLUMN job_states.actor IS 'Who moved it';
COMMENT ON COLUMN job_states.lease_id IS 'Lease concerned';
