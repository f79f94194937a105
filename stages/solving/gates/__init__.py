"""Structured pruning by trained gates (D-gating): trains a whole model with gates, then removes units by their size."""
