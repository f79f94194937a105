"""Layer-wise pruning of a block: methods assigned to linears, sparsity shared out, linears of one input solved."""
