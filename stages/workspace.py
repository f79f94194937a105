"""How a stage opens what the stages before it left."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.artifacts.manifest import identity_of, read_manifest, verified
from stages.errors import ArtifactError
from stages.models.compute import device_of
from stages.models.streamed import StreamedModel
from stages.params import Compute
from stages.places import MODEL
from stages.tensorfile import TensorFile, write_tensors
from stages.walk import InputStatistics


class _Opened:
    """The model as it was opened, which nobody runs, and what it was opened from."""

    at: tuple[Path, Compute, str] | None = None
    model: StreamedModel
    lock = threading.Lock()


_opened, _own = _Opened(), threading.local()


def open_model(compute: Compute) -> tuple[StreamedModel, str]:
    """The fetched model, checked against its manifest, and its identity; each thread has a copy of its own.

    Opened once: building a model changes torch's and transformers' global state while it lasts.
    """
    at = Path.cwd(), compute, identity_of(MODEL)
    if getattr(_own, "at", None) != at:
        with _opened.lock:
            if _opened.at != at:
                _opened.at, _opened.model = at, _open(compute)
            _own.at, _own.model = at, copy.deepcopy(_opened.model)
    return _own.model, at[-1]


def _open(compute: Compute) -> StreamedModel:
    manifest = read_manifest(MODEL)
    for name in manifest["files"]:
        verified(MODEL, name, manifest)
    trust = bool(manifest.get("source", {}).get("trust_remote_code", False))
    return StreamedModel(MODEL, device_of(compute.device), compute.dtype, trust)


def activations_suffix(manifest: Mapping[str, Any]) -> str:
    """Suffix of the files that the extract stage wrote."""
    return Path(next(iter(manifest["files"]))).suffix


def write_statistics(path: Path, statistics: list[InputStatistics]) -> None:
    """One file a block: `<first linear>.gram` and `.mean`, the rest in the metadata."""
    tensors, groups = dict[str, Tensor](), {}
    for one in statistics:
        name = one.linears[0]
        tensors |= {f"{name}.gram": one.gram.cpu(), f"{name}.mean": one.mean.cpu()}
        groups[name] = {"linears": one.linears, "tokens": one.tokens}
    write_tensors(path, tensors, {"groups": json.dumps(groups, sort_keys=True)})


def read_statistics(path: Path, device: torch.device) -> list[InputStatistics]:
    """What `write_statistics` wrote, on `device`."""
    file, found = TensorFile(path), []
    for name, facts in json.loads(file.metadata["groups"]).items():
        gram, mean = file.read([f"{name}.gram", f"{name}.mean"]).values()
        found.append(InputStatistics(tuple(facts["linears"]), gram.to(device), mean.to(device), facts["tokens"]))
    return found


def same_model(manifest: Mapping[str, Any], identity: str, folder: Path) -> None:
    """Raise ArtifactError if `folder` was made from another model than the one at hand."""
    if manifest["model"] != identity:
        raise ArtifactError(f"{folder} was made from another model than {MODEL} holds now: run `dvc repro`")
