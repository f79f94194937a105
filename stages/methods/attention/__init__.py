"""Methods that prune q and k jointly toward the attention matrix: AttentionProblem, Budget -> LinearSolution."""
