-- Which processes forks are made from, and which GPUs policies count in the pool of a backbone.

ALTER TABLE gpus ADD COLUMN warm VARCHAR;
ALTER TABLE gpus ADD COLUMN warm_since TIMESTAMP;
COMMENT ON COLUMN gpus.warm IS 'Backbone in whose pool the policy counts it: a server of that is kept on its runner; NULL: in none';
COMMENT ON COLUMN gpus.warm_since IS 'Since when it is in that pool, or in none (UTC)';

CREATE TABLE fork_servers (
    node_id   VARCHAR NOT NULL,
    recipe    VARCHAR NOT NULL,
    backbone  VARCHAR NOT NULL,
    state     VARCHAR NOT NULL CHECK (state IN ('loading', 'ready', 'failed')),
    pid       BIGINT,
    since     TIMESTAMP NOT NULL,
    until     TIMESTAMP,
    memory    BIGINT,
    note      VARCHAR,
    PRIMARY KEY (node_id, recipe, backbone)
);
COMMENT ON TABLE fork_servers IS 'Processes that have loaded what jobs import, from which these are forked (docs/warm.md)';
COMMENT ON COLUMN fork_servers.node_id IS 'Runner';
COMMENT ON COLUMN fork_servers.recipe IS 'Recipe that it has loaded, empty: torch alone, for entrypoints';
COMMENT ON COLUMN fork_servers.backbone IS 'Pre-trained model that it has loaded, empty: none';
COMMENT ON COLUMN fork_servers.state IS 'loading; ready; or failed, which it is not tried again until its runner starts anew';
COMMENT ON COLUMN fork_servers.pid IS 'Process id, NULL: it has gone';
COMMENT ON COLUMN fork_servers.since IS 'Since when it is in that state (UTC)';
COMMENT ON COLUMN fork_servers.until IS 'When it ends if no job uses it meanwhile (UTC), NULL: it is kept';
COMMENT ON COLUMN fork_servers.memory IS 'Bytes of main memory that it takes by itself, NULL: not measured';
COMMENT ON COLUMN fork_servers.note IS 'Why it failed';
