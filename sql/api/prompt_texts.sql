-- Texts that the banks of the LLM $1 have.
SELECT llm, revision, tokenizer, list(text ORDER BY id) AS texts FROM prompts WHERE llm = $1 GROUP BY ALL ORDER BY ALL
