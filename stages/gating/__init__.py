"""D-gating: group sparsity by any optimiser, of any slices of any module's parameters; a library that imports errors.

`eq.`, `Theorem` and `Lemma` in this room are those of "Differentiable Sparsity via D-Gating" (2025).
"""
