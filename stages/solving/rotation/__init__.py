"""Slices the hidden width (SliceGPT): bases of what enters every norm, block after block."""
