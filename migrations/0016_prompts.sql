-- The prompt bank: texts that may be a soft prompt's start, with what the LLM makes of each.

CREATE TABLE prompts (
    id        BIGINT PRIMARY KEY,
    llm       VARCHAR NOT NULL,
    revision  VARCHAR NOT NULL,
    tokenizer VARCHAR NOT NULL,
    text      VARCHAR NOT NULL,
    source    VARCHAR NOT NULL,
    task      VARCHAR,
    features  FLOAT[] NOT NULL,
    medoid    BIGINT,
    ts        TIMESTAMP NOT NULL,
    added_by  VARCHAR NOT NULL
);
COMMENT ON TABLE prompts IS 'One row a prompt of a bank; a bank is what has the same LLM, revision and tokenizer';
COMMENT ON COLUMN prompts.id IS 'Number of the prompt';
COMMENT ON COLUMN prompts.llm IS 'LLM that the features come from';
COMMENT ON COLUMN prompts.revision IS 'Revision of its weights';
COMMENT ON COLUMN prompts.tokenizer IS 'Its tokenizer';
COMMENT ON COLUMN prompts.text IS 'The prompt';
COMMENT ON COLUMN prompts.source IS 'Package or file that it comes from';
COMMENT ON COLUMN prompts.task IS 'Data set or task that it was written for, NULL: not said';
COMMENT ON COLUMN prompts.features IS 'Activations of the LLM on the prompt; in a bank all have the same length';
COMMENT ON COLUMN prompts.medoid IS 'Prompt that represents its cluster, its own number: it does itself; NULL: the bank has no clusters yet';
COMMENT ON COLUMN prompts.ts IS 'When it was added (UTC)';
COMMENT ON COLUMN prompts.added_by IS 'Who added it';
