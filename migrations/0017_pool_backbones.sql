-- Backbones that people keep warm in a pool.

CREATE TABLE pool_backbones (
    pool      VARCHAR NOT NULL,
    backbone  VARCHAR NOT NULL,
    set_by    VARCHAR NOT NULL,
    ts        TIMESTAMP NOT NULL,
    PRIMARY KEY (pool, backbone)
);
COMMENT ON TABLE pool_backbones IS 'Backbones that are kept warm on each runner of a pool, as set by stoker pool warm';
COMMENT ON COLUMN pool_backbones.pool IS 'Pool';
COMMENT ON COLUMN pool_backbones.backbone IS 'Pre-trained model';
COMMENT ON COLUMN pool_backbones.set_by IS 'Who set it';
COMMENT ON COLUMN pool_backbones.ts IS 'When (UTC)';
