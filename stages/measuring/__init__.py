"""Measurements of the dense and the pruned model: quality, speed and memory, attention matrices."""
