"""Compiled kernels: arrays in, arrays out, for what no tensor library does in one pass."""
