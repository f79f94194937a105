"""Smaller checkpoints: tensors cut to the kept units, native configurations, loading in a fresh process."""
