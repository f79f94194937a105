"""Compiled kernels (numba, Triton): arrays in, arrays out, for what no tensor library does in one pass."""
