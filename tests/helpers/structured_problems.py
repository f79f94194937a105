"""Random problems of structured methods: units of one column or more, scattered over the inputs."""

from __future__ import annotations

from dataclasses import replace

import torch

from stages.linalg.salience import channel_salience
from stages.methods.units.contract import UnitProblem


def make_units(
    units: int = 10,
    width: int = 1,
    rows: int = 14,
    seed: int = 0,
    tokens: int = 0,
    zero: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[UnitProblem, torch.Tensor]:
    """A problem with everything that a method may ask for, and the inputs X (tokens, d_in) it is of.

    zero: a unit all of whose weights are 0.
    """
    d_in, tokens = units * width, tokens or 6 * units * width
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    x = (normal(tokens, d_in) + 0.5) @ (normal(d_in, d_in) / d_in**0.5 + torch.eye(d_in)) * (0.3 + normal(d_in).abs())
    dense, columns = normal(rows, d_in), torch.randperm(d_in, generator=random).view(units, width)
    made = [normal(units, width * 5) for _ in range(2)]
    if zero is not None:
        dense[:, columns[zero]] = 0
        for one in made:
            one[zero] = 0
    weights = [*made, dense.T[columns].flatten(1)]
    terms = [channel_salience(one, normal(*one.shape), normal(*one.shape).square()) for one in weights]
    gradients = normal(4 * rows, rows) @ normal(rows, rows)
    problem = UnitProblem(
        dense=dense, gram=x.T @ x / tokens, mean=x.mean(0), tokens=tokens, columns=columns,
        parameters=sum(one.shape[1] for one in weights), coupled=torch.cat(weights, 1),
        salience={name: torch.stack([term[name] for term in terms], 1) for name in terms[0]},
        fisher=gradients.T @ gradients / len(gradients),
    )  # fmt: skip
    return (problem if dtype == torch.float64 else cast(problem, dtype)), x


def cast(problem: UnitProblem, dtype: torch.dtype) -> UnitProblem:
    """The problem in another dtype."""
    return replace(
        problem, dense=problem.dense.to(dtype), gram=problem.gram.to(dtype), mean=problem.mean.to(dtype),
        coupled=problem.coupled.to(dtype), fisher=problem.fisher.to(dtype),
        salience={name: term.to(dtype) for name, term in problem.salience.items()},
    )  # fmt: skip
