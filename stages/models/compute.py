"""Turn the settings `device` and `dtype` into what torch wants."""

from __future__ import annotations

import torch

from stages.errors import ParameterError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def device_of(setting: str) -> torch.device:
    """`auto`: CUDA where there is one, else the CPU. Raises ParameterError for a device that is not there."""
    if setting == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(setting)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ParameterError(
            f"compute.device: expected one of {torch.cuda.device_count()} CUDA devices, got {setting}: use auto or cpu"
        )
    return device


def dtype_of(setting: str, stored: torch.dtype) -> torch.dtype:
    """`auto`: the dtype of the checkpoint."""
    return stored if setting == "auto" else DTYPES[setting]


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a clock tells the truth."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
