"""Pure mathematics: tensors in, tensors out; device and dtype come from the input."""
