"""Gram matrices E[x xᵀ] and cross moments E[x yᵀ] over tokens, accumulated chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PANEL = 256
"""Columns of the Gram matrix computed at once: only the panels on and right of the diagonal are."""


@dataclass
class GramSum:
    """Running sums of x and x xᵀ over tokens, for inputs x of one width.

    outer: (width, width) sum of x xᵀ, only the upper panels are filled;
    total: (width,) sum of x; tokens: how many were added.
    """

    outer: Tensor
    total: Tensor
    tokens: int = 0

    @classmethod
    def zeros(cls, width: int, dtype: torch.dtype, device: torch.device) -> GramSum:
        """Sums over no tokens."""
        return cls(
            torch.zeros(width, width, dtype=dtype, device=device),
            torch.zeros(width, dtype=dtype, device=device),
        )

    def add(self, inputs: Tensor) -> None:
        """Add inputs of shape (..., width), in any floating dtype.

        A symmetric rank-k update by panels: about half the work of the full product.
        """
        x = inputs.reshape(-1, inputs.shape[-1]).to(self.outer.dtype)
        width = x.shape[1]
        for start in range(0, width, PANEL):
            panel = x[:, start : start + PANEL]
            self.outer[start : start + PANEL, start:].addmm_(panel.T, x[:, start:])
        self.total += x.sum(0)
        self.tokens += x.shape[0]

    def mean_gram(self) -> Tensor:
        """(width, width) symmetric mean of x xᵀ. Raises ValueError if no token was added."""
        if self.tokens == 0:
            raise ValueError("no tokens: the mean of nothing is not defined")
        upper = torch.triu(self.outer)
        return (upper + torch.triu(upper, 1).T) / self.tokens

    def mean(self) -> Tensor:
        """(width,) mean of x."""
        return self.total / self.tokens

    def plus(self, other: GramSum) -> GramSum:
        """Sums over the tokens of both."""
        return GramSum(self.outer + other.outer, self.total + other.total, self.tokens + other.tokens)


@dataclass
class CrossSum:
    """Running sum of x yᵀ over tokens, (width of x, width of y)."""

    outer: Tensor
    tokens: int = 0

    @classmethod
    def zeros(cls, widths: tuple[int, int], dtype: torch.dtype, device: torch.device) -> CrossSum:
        """The sum over no tokens."""
        return cls(torch.zeros(widths, dtype=dtype, device=device))

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add x and y of the same tokens, (..., width of each), in any floating dtype."""
        x, y = (inputs.reshape(-1, inputs.shape[-1]).to(self.outer.dtype) for inputs in (x, y))
        self.outer.addmm_(x.T, y)
        self.tokens += x.shape[0]

    def mean_cross(self) -> Tensor:
        """(width of x, width of y) mean of x yᵀ. Raises ValueError if no token was added."""
        if self.tokens == 0:
            raise ValueError("no tokens: the mean of nothing is not defined")
        return self.outer / self.tokens
