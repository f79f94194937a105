"""Opens what earlier stages left, checked: the fetched model, and folders made from the same model."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.artifacts.manifest import identity_of, read_manifest, trusts_code, verify_all
from stages.artifacts.places import MODEL, PRUNED
from stages.errors import ArtifactError
from stages.models.loading.compute import device_of
from stages.models.streaming.streamed import StreamedModel
from stages.params import Compute


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
    verify_all(MODEL, manifest)
    return StreamedModel(MODEL, device_of(compute.device), compute.dtype, trusts_code(manifest))


def same_model(manifest: Mapping[str, Any], identity: str, folder: Path) -> None:
    """Raise ArtifactError if `folder` was made from another model than the one at hand."""
    if manifest["model"] != identity:
        raise ArtifactError(f"{folder} was made from another model than {MODEL} holds now: run `dvc repro`")


def open_pruned(dense: StreamedModel, manifest: Mapping[str, Any]) -> StreamedModel:
    """The pruned model, in the dtype and on the device of the dense one; see `check_pruned`."""
    check_pruned(manifest)
    trust = trusts_code(read_manifest(MODEL))
    return StreamedModel(PRUNED, dense.device, str(dense.dtype).removeprefix("torch."), trust)


def check_pruned(manifest: Mapping[str, Any]) -> None:
    """Raise ArtifactError unless data/pruned holds the files of its manifest and was pruned from data/model as it is.

    manifest: pruning_manifest.json.
    """
    if manifest["source_files"] != read_manifest(MODEL)["files"]:
        raise ArtifactError(f"{PRUNED} was made from another model than {MODEL} holds now: run `dvc repro`")
    verify_all(PRUNED, manifest)
