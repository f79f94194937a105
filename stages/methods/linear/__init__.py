"""Layer-wise methods that prune single weights: LinearProblem, Budget -> LinearSolution."""
