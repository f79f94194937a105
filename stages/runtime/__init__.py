"""Runs a stage: parameters, blocks' work, progress, cost, publishing, failures. Imports params, models and below."""
