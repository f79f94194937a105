"""Everything that knows transformers: find blocks, run them, load and write checkpoints."""
