"""Compute settings: torch device and dtype from params.yaml, and the facts that a result's bits depend on."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

import torch

from stages.errors import ParameterError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
VECTOR_FUNCTIONS = (
    "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "floor", "lgamma",
    "log", "log10", "log1p", "log2", "round", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
"""Functions of one tensor that torch may hand to MKL on a CPU."""


def device_of(setting: str, place: str = "compute.device") -> torch.device:
    """torch device of the setting; `auto`: CUDA where there is one, else the CPU.

    place: the setting's name, for messages. Raises ParameterError for a CUDA device that is not there.
    """
    if setting == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(setting)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ParameterError(
            f"{place}: expected one of {torch.cuda.device_count()} CUDA devices, got {setting}: use auto or cpu"
        )
    return device


def dtype_of(setting: str, stored: torch.dtype) -> torch.dtype:
    """torch dtype of the setting; `auto`: the checkpoint's, `stored`."""
    return stored if setting == "auto" else DTYPES[setting]


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its queued work, so that a clock measures it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@cache
def settle_vector_math() -> None:
    """Call MKL's vector functions once on one thread, before any tensor that is shared among threads.

    MKL resolves each function's kernel on its first call, and two threads that make it together can get a
    kernel of low precision: about one process in ten then rotated its first chunk of positions with other
    cosines (pytorch/pytorch#188792). No tensor depends on what is computed here.
    """
    for dtype in (torch.float32, torch.float64):
        value = torch.full((1,), 0.5, dtype=dtype)
        for function in VECTOR_FUNCTIONS:
            getattr(torch, function)(value)


def compute_facts(device: torch.device, dtype: torch.dtype, chunk: int) -> dict[str, Any]:
    """What of the computation can change bits of a result, for keys and manifests."""
    return {
        "device": device.type,
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "dtype": str(dtype),
        "chunk": chunk,
        "torch": torch.__version__,
        **{package: version(package) for package in ("transformers", "numba")},
    }
