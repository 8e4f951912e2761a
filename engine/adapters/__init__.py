"""The bank of what ended fine-tuning jobs have left for others to begin with."""
