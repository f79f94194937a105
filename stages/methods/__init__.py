"""Pruning methods on tensors, one file each: frozen dataclasses of settings. May import linalg and errors."""
