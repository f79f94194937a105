"""Measurements of the dense and the pruned model: quality, speed and memory, attention matrices.

Imports runtime, walk, params, models and below.
"""
