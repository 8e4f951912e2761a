-- Profiles of models piece by piece, from which swapping is planned (004 ch. 3.3.2, figs 3-3 to 3-11).

CREATE TABLE part_times (
    signature   BIGINT NOT NULL,
    device      VARCHAR NOT NULL,
    part        INTEGER NOT NULL CHECK (part >= 0),
    direction   VARCHAR NOT NULL CHECK (direction IN ('forward', 'backward', 'load', 'out')),
    model       VARCHAR NOT NULL,
    name        VARCHAR NOT NULL,
    emulated    BOOLEAN NOT NULL,
    seconds     DOUBLE NOT NULL CHECK (seconds >= 0),
    parameters  BIGINT NOT NULL,
    gradients   BIGINT NOT NULL,
    activations BIGINT NOT NULL,
    workspace   BIGINT NOT NULL,
    updated_at  TIMESTAMP NOT NULL,
    PRIMARY KEY (signature, device, part, direction)
);
COMMENT ON TABLE part_times IS 'How long each piece of a model takes and what memory it needs, of one micro-batch; newest profile';
COMMENT ON COLUMN part_times.signature IS 'What a GPU does in a step, as in jobs: the batch of a rank, too';
COMMENT ON COLUMN part_times.device IS 'Product name of the GPU, or that it is emulated on the CPU';
COMMENT ON COLUMN part_times.part IS 'Number of the piece in the order of computing, from 0';
COMMENT ON COLUMN part_times.direction IS 'forward, backward (computing it again included), load to the device, out (its gradients to the host)';
COMMENT ON COLUMN part_times.model IS 'Model, as in jobs';
COMMENT ON COLUMN part_times.name IS 'Module or operation that the piece begins with';
COMMENT ON COLUMN part_times.emulated IS 'Whether the times are of a model of a link, not of hardware';
COMMENT ON COLUMN part_times.seconds IS 'Median of the rounds (s)';
COMMENT ON COLUMN part_times.parameters IS 'Its weights and buffers (bytes)';
COMMENT ON COLUMN part_times.gradients IS 'Gradients of its weights (bytes)';
COMMENT ON COLUMN part_times.activations IS 'What it keeps for its backward (bytes)';
COMMENT ON COLUMN part_times.workspace IS 'Most that it needs beside all that while it computes (bytes)';
COMMENT ON COLUMN part_times.updated_at IS 'When it was profiled (UTC)';
