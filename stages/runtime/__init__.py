"""How a stage runs: its parameters, outputs, progress, cost and failures, and the workers that do its blocks."""
