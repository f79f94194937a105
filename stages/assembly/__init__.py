"""Pruned checkpoints: layouts, writing, and the check of the reloaded checkpoint against the masked model.

Imports runtime, walk, params, models and below.
"""
