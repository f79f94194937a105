"""Structured pruning of a block's heads and MLP channels: scores, ranking over the model, removal and compensation."""
