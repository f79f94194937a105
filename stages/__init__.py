"""Secateur: prune language models as a pipeline whose every step is a file on disk."""

__version__ = "0.1.0"
