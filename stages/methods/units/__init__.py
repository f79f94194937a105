"""Structured methods that score heads and MLP channels (UnitProblem -> scores), and their ranking to a budget."""
