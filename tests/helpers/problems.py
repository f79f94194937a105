"""Random layer-wise problems, easy and nasty."""

from __future__ import annotations

import torch

from stages.methods.linear.contract import LinearProblem

KINDS = ("independent", "correlated", "few_tokens", "dead_inputs", "outlier")


def make_problem(
    kind: str = "correlated",
    seed: int = 0,
    rows: tuple[int, ...] = (24, 8),
    width: int = 48,
    dtype: torch.dtype = torch.float32,
) -> LinearProblem:
    """A problem whose inputs are of this kind; few_tokens has a singular Gram matrix."""
    generator = torch.Generator().manual_seed(1000 * KINDS.index(kind) + seed)
    tokens = width // 3 if kind == "few_tokens" else 8 * width
    x = torch.randn(tokens, width, generator=generator, dtype=torch.float64)
    if kind != "independent":
        mix = torch.randn(width, width, generator=generator, dtype=torch.float64) / width**0.5
        x = x @ (mix + 0.3 * torch.eye(width, dtype=torch.float64))
    if kind == "dead_inputs":
        x[:, :: width // 6] = 0
    if kind == "outlier":
        x[:, width // 2] *= 100
    dense = torch.randn(sum(rows), width, generator=generator, dtype=torch.float64)
    gram = (x.T @ x / tokens).to(dtype)
    return LinearProblem(dense.to(dtype), gram, x.mean(0).to(dtype), tokens, rows)


def diagonal_problem(seed: int = 0) -> LinearProblem:
    """A problem whose inputs have nothing to do with each other."""
    problem = make_problem("independent", seed)
    diagonal = torch.diag(problem.gram.diagonal())
    return LinearProblem(problem.target, diagonal, problem.mean, problem.tokens, problem.rows)
