"""Contract of methods of the attention matrix: AttentionProblem, its inputs, and the protocol AttentionSolver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stages.linalg.attention import AttentionErrors, Heads, errors_between
from stages.methods.linear.contract import Budget, LinearProblem, LinearSolution


class AttentionInputs(Protocol):
    """Calibration sequences of a block's attention, as queries and keys of a batch at a time."""

    @property
    def batches(self) -> int:
        """Number of batches."""
        ...

    def dense(self, batch: int) -> Heads:
        """Queries and keys of the dense model, whose attention matrices are to be preserved."""
        ...

    def pruned(self, batch: int, weight: Tensor) -> Heads:
        """Queries and keys of the stacked weight (d_q + d_k, d_in) of q and k, differentiable in it."""
        ...


@dataclass(frozen=True)
class AttentionProblem:
    """The pruning problem of the q and k of one attention.

    linear:    their rows stacked, q's above k's, as a layer-wise problem (target, Gram matrix, rows).
    dense:     (d_q + d_k, d_in) their weights before pruning.
    fit, held: sequences to fit to, and held-out ones to choose by.
    """

    linear: LinearProblem
    dense: Tensor
    fit: AttentionInputs
    held: AttentionInputs


class AttentionSolver(Protocol):
    """A method of the attention matrix: a frozen dataclass of its settings that solves an AttentionProblem when called.

    paper, refits, scopes: as of a LinearSolver. batch: sequences in a batch of its inputs.
    """

    paper: str
    refits: bool
    scopes: tuple[str, ...]
    batch: int

    def __call__(self, problem: AttentionProblem, budget: Budget) -> LinearSolution:
        """Solve one problem to the exact counts of the budget; inputs are not modified."""
        ...


def batch_order(batches: int, steps: int, seed: int) -> Iterator[int]:
    """The number of a batch for each of `steps`: all batches in random order, then all in another."""
    generator, order = torch.Generator().manual_seed(seed), list[int]()
    for _ in range(steps):
        order = order or torch.randperm(batches, generator=generator).tolist()
        yield order.pop()


@torch.no_grad()
def attention_error(inputs: AttentionInputs, weight: Tensor) -> AttentionErrors:
    """Errors of the attention matrices against the dense ones, summed over all batches; weight: (d_q + d_k, d_in)."""
    total: AttentionErrors | None = None
    for batch in range(inputs.batches):
        errors = errors_between(inputs.pruned(batch, weight), inputs.dense(batch))
        total = errors if total is None else total.plus(errors)
    if total is None:
        raise ValueError("expected at least one batch of sequences, got none")
    return total
