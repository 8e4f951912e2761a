"""The bank of ended fine-tuning jobs' adapters, with which others may begin."""
