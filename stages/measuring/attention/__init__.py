"""Attention matrices of the pruned model against the dense model's: their errors, block by block and head by head."""
