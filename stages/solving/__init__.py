"""Drives the pruning methods over a model, block after block: the work of the solve stage. Imports any room below."""
