-- A tuned prompt in the bank: its vectors, from which a tuning begins, where a text has the embeddings of its tokens.

ALTER TABLE prompts ADD COLUMN vectors FLOAT[];
COMMENT ON COLUMN prompts.vectors IS 'Vectors of a tuned prompt, one token after the other, each as long as the features; NULL: it is a text';
