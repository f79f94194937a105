"""Methods of the attention matrix, q and k jointly, one file each: AttentionProblem, Budget -> LinearSolution."""
