"""D-gating: group sparsity by any optimiser, of any slices of any module's parameters; its two baselines."""
