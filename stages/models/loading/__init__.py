"""Checkpoints and models loaded from a folder: tensors by name, skeletons without memory, devices and dtypes."""
