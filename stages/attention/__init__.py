"""Methods for a whole attention, q and k jointly, one file each: AttentionProblem and Budget -> LinearSolution."""
