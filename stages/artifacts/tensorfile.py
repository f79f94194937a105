"""safetensors files, written piece by piece and read one tensor at a time, in constant memory.

The format: 8 bytes header length, a JSON header, the tensors' bytes one after another
(https://github.com/huggingface/safetensors#format). The safetensors library writes only whole
dictionaries; a walk over a model that does not fit in memory has them one at a time.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import torch
from torch import Tensor

from stages.artifacts.places import how_to_make, how_to_repair
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
            size = dtype.itemsize * prod(shape)
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


@dataclass(frozen=True)
class TensorSpan:
    """A tensor's bytes in a safetensors file: dtype, shape, and the offset of the first byte."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return self.dtype.itemsize * prod(self.shape)

    def rows(self, start: int, stop: int) -> TensorSpan:
        """The span of the rows [start, stop) of the first axis."""
        row = self.dtype.itemsize * prod(self.shape[1:])
        return TensorSpan(self.dtype, (stop - start, *self.shape[1:]), self.offset + start * row)


class TensorFile:
    """A safetensors file, read with plain reads into memory of the tensors' own.

    The library maps files into memory; a copy then stands twice in the process until the file is
    closed. Attributes: spans, in the order of the bytes; metadata.
    Raises ArtifactError if the file is missing or is no safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                length = struct.unpack("<Q", file.read(8))[0]
                if length > path.stat().st_size:
                    raise ValueError(f"a header of {length} bytes")
                header = json.loads(file.read(length))
            self.metadata: dict[str, str] = header.pop("__metadata__", {})
            order = sorted(header, key=lambda name: header[name]["data_offsets"])
            self.spans = {name: _span_of(header[name], 8 + length) for name in order}
            end = 8 + length
            for name, span in self.spans.items():
                if span.offset != end:
                    raise ValueError(f"{name} begins at byte {span.offset}, expected {end}")
                end += span.dtype.itemsize * prod(span.shape)
            if end != path.stat().st_size:
                raise ValueError(f"expected {end} bytes, got {path.stat().st_size}")
        except FileNotFoundError:
            raise ArtifactError(f"{path} is missing: {how_to_make(path)}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
            raise ArtifactError(f"{path} is no readable safetensors file ({error}): {how_to_repair(path)}") from None

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The named tensors."""
        with self.path.open("rb", buffering=0) as file:
            return {name: _read(file, self.spans[name]) for name in names}

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a tensor."""
        with self.path.open("rb", buffering=0) as file:
            return _read(file, self.spans[name].rows(start, stop))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file."""
    file = TensorFile(path)
    return file.read(file.spans)


def _span_of(entry: dict[str, Any], data: int) -> TensorSpan:
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"tensors of {entry['dtype']}, expected one of {', '.join(DTYPES)}")
    span = TensorSpan(DTYPES[entry["dtype"]], tuple(entry["shape"]), data + entry["data_offsets"][0])
    size = entry["data_offsets"][1] - entry["data_offsets"][0]
    if size != span.dtype.itemsize * prod(span.shape):
        raise ValueError(f"{size} bytes for a tensor of shape {span.shape}")
    return span


def _read(file: FileIO, span: TensorSpan) -> Tensor:
    data = torch.empty(span.dtype.itemsize * prod(span.shape), dtype=torch.uint8)
    file.seek(span.offset)
    view, done = data.numpy().data, 0
    while done < len(data):
        count = file.readinto(view[done:])
        if not count:
            path = Path(file.name)
            raise ArtifactError(f"{path} ended early: {how_to_repair(path)}")
        done += count
    return data.view(span.dtype).view(span.shape)
