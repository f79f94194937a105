"""Import of foreign models and texts: GGUF files, checkpoints normalised to one dtype, tokenised text."""
