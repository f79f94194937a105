"""What every method of the attention matrix takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stages.linalg.attention import AttentionErrors, Heads, errors_between
from stages.methods.linear.contract import Budget, LinearProblem, LinearSolution


class AttentionInputs(Protocol):
    """Sequences that a block's attention is calibrated on, a batch at a time; nothing of them is kept in memory."""

    @property
    def batches(self) -> int:
        """How many batches there are."""
        ...

    def dense(self, batch: int) -> Heads:
        """Queries and keys of the dense model, whose attention matrices are to survive."""
        ...

    def pruned(self, batch: int, weight: Tensor) -> Heads:
        """The same with other weights (d_q + d_k, width) of q and k, in which they can be differentiated."""
        ...


@dataclass(frozen=True)
class AttentionProblem:
    """The q and k of one attention.

    linear: their rows stacked, q's above k's, as a layer-wise problem (target, Gram matrix and counts);
    dense:  (d_q + d_k, width) their weights before pruning.
    fit, held: sequences to calibrate on, and others to choose by.
    """

    linear: LinearProblem
    dense: Tensor
    fit: AttentionInputs
    held: AttentionInputs


class AttentionSolver(Protocol):
    """A method: a frozen dataclass of its settings; paper, refits, scopes as of a LinearSolver.

    batch: how many sequences it wants together.
    """

    paper: str
    refits: bool
    scopes: tuple[str, ...]
    batch: int

    def __call__(self, problem: AttentionProblem, budget: Budget) -> LinearSolution:
        """Solve one problem; inputs are left as they are."""
        ...


def batch_order(batches: int, steps: int, seed: int) -> Iterator[int]:
    """A batch for every step: all of them in random order, then all in another."""
    generator, order = torch.Generator().manual_seed(seed), list[int]()
    for _ in range(steps):
        order = order or torch.randperm(batches, generator=generator).tolist()
        yield order.pop()


@torch.no_grad()
def attention_error(inputs: AttentionInputs, weight: Tensor) -> AttentionErrors:
    """Errors of the attention matrices of all batches with this weight (d_q + d_k, width)."""
    total: AttentionErrors | None = None
    for batch in range(inputs.batches):
        found = errors_between(inputs.pruned(batch, weight), inputs.dense(batch))
        total = found if total is None else total.plus(found)
    if total is None:
        raise ValueError("expected at least one batch of sequences, got none")
    return total
