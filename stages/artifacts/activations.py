"""Files of hidden states (sequences, length, width), safetensors or Parquet, read and written in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from stages.artifacts.places import how_to_repair
from stages.artifacts.tensorfile import TensorFile, TensorWriter
from stages.errors import ArtifactError

NAME = "states"
Shape = tuple[int, int, int]
"""sequences, length, width"""


def stored_size(file_format: str, shape: Shape, dtype: torch.dtype) -> int:
    """Bytes that hidden states of this shape and dtype take in a file of `file_format`."""
    return prod(shape) * (dtype if file_format == "safetensors" else _parquet_dtype(dtype)).itemsize


def _parquet_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float16 if dtype == torch.float16 else torch.float32


class StatesWriter(Protocol):
    """A context manager that writes sequences in order."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None: ...
    def append(self, states: Tensor) -> None:
        """Write the next sequences (n, length, width)."""


def writer_of(path: Path, file_format: str, shape: Shape, dtype: torch.dtype) -> StatesWriter:
    """A writer of hidden states of this shape in `file_format`: safetensors, or Parquet with a token a row."""
    kind = _SafetensorsStates if file_format == "safetensors" else _ParquetStates
    return kind(path, shape, dtype)


def states_shape(path: Path) -> Shape:
    """(sequences, length, width) of the hidden states in a file."""
    if path.suffix == ".safetensors":
        shape = TensorFile(path).spans[NAME].shape
        return shape[0], shape[1], shape[2]
    metadata = pq.read_schema(path).metadata
    sequences, length, width = (int(metadata[key]) for key in (b"sequences", b"length", b"width"))
    return sequences, length, width


def read_states(path: Path, chunk: int) -> Iterator[Tensor]:
    """The hidden states of a file in chunks (n, length, width) of at most `chunk` sequences."""
    sequences = states_shape(path)[0]
    for start in range(0, sequences, chunk):
        yield read_sequences(path, start, min(start + chunk, sequences))


def read_sequences(path: Path, start: int, stop: int) -> Tensor:
    """The hidden states (stop - start, length, width) of the sequences [start, stop) of a file."""
    if path.suffix == ".safetensors":
        return TensorFile(path).read_rows(NAME, start, stop)
    _, length, width = states_shape(path)
    with pq.ParquetFile(path) as file:
        dtype = getattr(torch, file.schema_arrow.metadata[b"dtype"].decode())
        groups, first = _row_groups(file, start * length, stop * length)
        column = file.read_row_groups(groups).column(0).slice(start * length - first, (stop - start) * length)
    values = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    if len(values) != (stop - start) * length * width:
        raise ArtifactError(f"{path}: expected {stop} sequences of {length} tokens: {how_to_repair(path)}")
    return torch.from_numpy(values.copy()).view(-1, length, width).to(dtype)


def _row_groups(file: pq.ParquetFile, start: int, stop: int) -> tuple[list[int], int]:
    """The row groups that hold the rows [start, stop), and the first row in them."""
    groups, first, row = list[int](), 0, 0
    for group in range(file.metadata.num_row_groups):
        end = row + file.metadata.row_group(group).num_rows
        if end > start and row < stop:
            first = first if groups else row
            groups.append(group)
        row = end
    return groups, first


class _SafetensorsStates:
    def __init__(self, path: Path, shape: Shape, dtype: torch.dtype) -> None:
        self._writer = TensorWriter(path, {NAME: (dtype, shape)})

    def append(self, states: Tensor) -> None:
        self._writer.write(NAME, states)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._writer.__exit__(kind, error, trace)


class _ParquetStates:
    """A row a token, fixed-size lists of floats; Parquet has no bfloat16, which float32 holds exactly."""

    def __init__(self, path: Path, shape: Shape, dtype: torch.dtype) -> None:
        sequences, length, width = shape
        self._stored = _parquet_dtype(dtype)
        value = pa.float16() if dtype == torch.float16 else pa.float32()
        facts = {"sequences": sequences, "length": length, "width": width, "dtype": str(dtype).removeprefix("torch.")}
        schema = pa.schema([(NAME, pa.list_(value, width))], metadata={k: str(v) for k, v in facts.items()})
        self._schema, self._missing = schema, sequences
        self._writer = pq.ParquetWriter(path, schema, compression="none", use_dictionary=False)

    def append(self, states: Tensor) -> None:
        values: np.ndarray = states.detach().cpu().to(self._stored).contiguous().view(-1).numpy()
        column = pa.FixedSizeListArray.from_arrays(pa.array(values), states.shape[-1])
        self._writer.write_table(pa.table([column], schema=self._schema))
        self._missing -= states.shape[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._writer.close()
        if kind is None and self._missing:
            raise ValueError(f"{self._missing} sequences were not written")


def activations_suffix(manifest: Mapping[str, Any]) -> str:
    """Suffix (.safetensors or .parquet) of the files that a manifest of data/activations lists."""
    return Path(next(iter(manifest["files"]))).suffix
