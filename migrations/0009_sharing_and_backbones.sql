-- What jobs say of sharing their GPUs, and the backbone that they start from: policies read both.

ALTER TABLE jobs ADD COLUMN share VARCHAR;
ALTER TABLE jobs ADD COLUMN backbone VARCHAR;
COMMENT ON COLUMN jobs.share IS 'How it may share its GPUs: exclusive, packed, switched or joined, NULL: its submitter has not said';
COMMENT ON COLUMN jobs.backbone IS 'Pre-trained model that it starts from, NULL: not said';
