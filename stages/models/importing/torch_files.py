"""Tensors of PyTorch's `.pt` files, read without running code that a pickle may hold."""

from __future__ import annotations

import re
import warnings
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from stages.errors import SourceError, reason_of

PLAIN = (torch.float32, torch.bfloat16, torch.float16)


def read_state(path: Path, places: Iterable[str], known: str) -> tuple[dict[str, Tensor], str]:
    """The state dict in the `.pt` file at `path`, mapped into memory where the file allows it, and where it lay.

    places: keys of the file under which the state dict may be, the first that is there counts; without any of them
            the file itself is the state dict, which must then have the tensor `known`.

    `torch.load(weights_only=True)` builds tensors and plain containers only; argparse's Namespace, which training
    scripts store their arguments in, is let through because it is a container too. Raises SourceError for any other
    object, and for a file that is no `.pt` file or holds no state dict.
    """
    content = _load(path)
    if not isinstance(content, dict):
        raise SourceError(f"{path}: expected a dictionary of tensors, got {type(content).__name__}")
    place = next((place for place in places if place in content), None)
    state = content if place is None else content[place]
    if not isinstance(state, dict) or (place is None and known not in state):
        keys = ", ".join(str(key) for key in list(content)[:5])
        raise SourceError(
            f"{path}: expected tensors under {', '.join(places)} or {known} itself, got a file with {keys or 'nothing'}"
        )
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise SourceError(f"{path}: expected a tensor for every name, got {type(tensor).__name__} for {name}")
    return state, place or "the file itself"


def check_tensors(
    path: Path, state: dict[str, Tensor], expected: dict[str, tuple[int, ...]], ignored: Iterable[str] = ()
) -> torch.dtype:
    """dtype of the tensors, which must be those of `expected` (shapes by name) and have one floating-point dtype.

    Raises SourceError for a tensor that is missing, unexpected (and not `ignored`), of another shape or of another
    dtype than the others.
    """
    missing = [name for name in expected if name not in state]
    if missing:
        raise SourceError(f"{path} has no tensor {missing[0]} ({len(missing)} missing): the file is not whole")
    unexpected = sorted(state.keys() - expected.keys() - set(ignored))
    if unexpected:
        raise SourceError(
            f"{path} holds {unexpected[0]} ({len(unexpected)} such tensors), which LlamaGen's model of these sizes "
            "has not: expected the file of a class-conditional model or image tokenizer as LlamaGen publishes it"
        )
    for name, shape in expected.items():
        if tuple(state[name].shape) != shape:
            raise SourceError(f"{path}: {name} has shape {tuple(state[name].shape)}, expected {shape} by the others")
    dtypes = {state[name].dtype for name in expected}
    if len(dtypes) > 1 or not dtypes <= set(PLAIN):
        found = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise SourceError(f"{path}: expected all tensors in one of float32, bfloat16 and float16, got {found}")
    return dtypes.pop()


def _load(path: Path) -> object:
    if not path.is_file():
        raise SourceError(f"{path} is no file: expected a .pt file that LlamaGen publishes")
    try:
        with torch.serialization.safe_globals([Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pickles of a protocol that torch does not write itself
            return torch.load(path, map_location="cpu", weights_only=True, mmap=_mappable(path))
    except UnpicklingError as error:
        refused = re.search(r"GLOBAL (\S+)", str(error))
        if refused is None:
            raise SourceError(f"{path} cannot be read as a .pt file (no pickle of tensors): fetch it again") from error
        raise SourceError(
            f"{path} holds {refused[1]}, whose code is never run: expected tensors only: save the state dict alone, "
            "torch.save(model.state_dict(), NEW_FILE)"
        ) from error
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, IndexError) as error:  # of a broken file
        raise SourceError(
            f"{path} cannot be read as a .pt file ({reason_of(error)}): check its permissions, or fetch it again"
        ) from error


def _mappable(path: Path) -> bool:
    """Whether the file is a zip archive, as torch.save writes them since 2020; older files are read whole."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"
