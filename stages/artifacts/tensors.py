"""safetensors files, written piece by piece in constant memory and read one tensor at a time.

The format: 8 bytes header length, a JSON header, the tensors' bytes one after another
(https://github.com/huggingface/safetensors#format). The safetensors library writes only whole
dictionaries; a walk over a model that does not fit in memory has them one at a time.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stages.errors import ArtifactError

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
DTYPES = {code: dtype for dtype, code in CODES.items()}
Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


class TensorWriter:
    """Write the tensors of `layout`, in its order, each whole or as rows appended one after another.

    Raises ValueError if what comes is not what the layout says, or if it ends early.
    """

    def __init__(self, path: Path, layout: Layout, metadata: Mapping[str, str] | None = None) -> None:
        header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
        end = 0
        self._pending: list[tuple[str, torch.dtype, int]] = []
        for name, (dtype, shape) in layout.items():
            size = dtype.itemsize
            for extent in shape:
                size *= extent
            header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [end, end + size]}
            end += size
            self._pending.append((name, dtype, size))
        self._pending.reverse()
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._file: BinaryIO = path.open("wb")
        self._file.write(struct.pack("<Q", len(text)) + text)

    def write(self, name: str, rows: Tensor) -> None:
        """Append `rows` (a tensor, or the next rows of its first axis) to tensor `name`."""
        while self._pending and self._pending[-1][2] == 0 and self._pending[-1][0] != name:
            self._pending.pop()
        expected, dtype, left = self._pending.pop()
        data = rows.detach().cpu().contiguous()
        if name != expected or data.dtype != dtype or data.nbytes > left:
            raise ValueError(
                f"expected {left} bytes of {expected} ({dtype}), got {data.nbytes} of {name} ({data.dtype})"
            )
        if data.nbytes:
            self._file.write(data.view(-1).view(torch.uint8).numpy().data)
        self._pending.append((expected, dtype, left - data.nbytes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._file.close()
        unwritten = [name for name, _, left in self._pending if left]
        if kind is None and unwritten:
            raise ValueError(f"tensors not written whole: {', '.join(unwritten)}")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write `tensors` (in the order given) to `path`."""
    layout = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    with TensorWriter(path, layout, metadata) as writer:
        for name, tensor in tensors.items():
            writer.write(name, tensor)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, in memory of their own; raises ArtifactError if it is no safetensors file."""
    with opened(path) as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118


def read_metadata(path: Path) -> dict[str, str]:
    """The string metadata of a file."""
    with opened(path) as file:
        return dict(file.metadata() or {})


def read_rows(path: Path, name: str, start: int, stop: int) -> Tensor:
    """Rows [start, stop) of tensor `name`, in memory of their own."""
    with opened(path) as file:
        rows: Tensor = file.get_slice(name)[start:stop]
        return rows.clone()


def read_layout(path: Path) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """dtype and shape of every tensor of a file, in the order of their bytes."""
    with path.open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    header.pop("__metadata__", None)
    names = sorted(header, key=lambda name: header[name]["data_offsets"][0])
    return {name: (DTYPES[header[name]["dtype"]], tuple(header[name]["shape"])) for name in names}


def opened(path: Path) -> safe_open:
    """The library's reader of `path`, memory-mapped: tensors it gives are views until cloned."""
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing: run the stage that writes it (dvc repro)") from None
    except SafetensorError as error:
        raise ArtifactError(f"{path} is no readable safetensors file ({error}): delete it and run dvc repro") from None
