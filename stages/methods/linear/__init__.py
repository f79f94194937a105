"""Layer-wise methods, one file each: LinearProblem and Budget -> LinearSolution."""
