"""Pruning methods, one file each, in families; a method is found by its file name. Tensors in, tensors out."""
