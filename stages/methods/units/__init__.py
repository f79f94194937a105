"""Scores of heads and channels, their ranking over the model, and what makes up for those removed."""
