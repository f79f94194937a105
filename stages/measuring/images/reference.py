"""The reference of FID and its kin: images of a folder, or ADM's .npz of moments and images."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stages.artifacts.manifest import sha256_of
from stages.artifacts.store import key_of
from stages.errors import ParameterError
from stages.measuring.images.metrics import Moments
from stages.measuring.images.stored_features import Images, read_features, stored_features
from stages.models.imaging.features import FeatureNetwork, Features, Inception
from stages.models.imaging.pictures import find_pictures, read_picture
from stages.runtime.progress import progress
from stages.runtime.stage import StageRun

TOGETHER = 64
"""Reference images whose features are computed and kept together."""
SETTING = "evaluate.images.reference"
MOMENTS = ("mu", "sigma"), ("mu_s", "sigma_s")
"""Names of the moments of pooled and of spatial features in ADM's .npz files."""


@dataclass(frozen=True)
class Reference:
    """What samples are compared with. At least one of features and moments is there.

    name: in words; features: of the reference images, None without them; pooled, spatial: stored moments.
    """

    name: str
    features: Features | None
    pooled: Moments | None = None
    spatial: Moments | None = None


def load_reference(run: StageRun, network: FeatureNetwork, path: Path, side: int) -> Reference:
    """The reference at `path`; features of its images are computed once and kept in the block store.

    side: pixels of the samples. Raises ParameterError for a path that is no reference, or images of another size.
    """
    if path.is_dir():
        return _of_folder(run, network, path, side)
    if path.suffix == ".npz" and path.is_file():
        return _of_file(run, network, path, side)
    raise ParameterError(
        f"{SETTING}: expected a folder of images, or an .npz file as ADM's evaluator reads, got {path}"
    )


def _of_folder(run: StageRun, network: FeatureNetwork, folder: Path, side: int) -> Reference:
    files = find_pictures(folder)
    hashes = [sha256_of(file) for file in files]
    pieces = list[tuple[dict[str, Any], Images]]()
    for start in range(0, len(files), TOGETHER):
        part = slice(start, start + TOGETHER)
        pieces.append(({"images": hashes[part], "side": side}, partial(_read, files[part], side)))
    name = f"{len(files)} images of {folder.name}, sha256 {key_of(images=hashes)[:12]}"
    return Reference(name, _features_of(run, network, pieces))


def _features_of(
    run: StageRun, network: FeatureNetwork, pieces: Sequence[tuple[Mapping[str, Any], Images]]
) -> Features:
    """Features of images that are read piece by piece, each with what it follows from."""
    paths = [
        stored_features(run, network, "reference_features", index, source, images)
        for index, (source, images) in enumerate(progress(pieces, desc="reference", unit="group"))
    ]
    return read_features(paths)


def _read(files: list[Path], side: int) -> Tensor:
    pictures = []
    for file in files:
        picture = read_picture(file)
        _check_side(str(file), tuple(picture.shape[1:]), side)
        pictures.append(picture)
    return torch.stack(pictures)


def _check_side(name: str, shape: tuple[int, ...], side: int) -> None:
    if shape != (side, side):
        raise ParameterError(
            f"{SETTING}: {name} has {' x '.join(map(str, shape))} pixels, the samples {side} x {side}: images that are "
            "compared have one size: resize them, or the samples by evaluate.images.size"
        )


def _of_file(run: StageRun, network: FeatureNetwork, path: Path, side: int) -> Reference:
    """ADM's file: its moments where the network is Inception, whose they are; its images where they are there."""
    digest = sha256_of(path)
    with _opened(path) as arrays:
        pooled, spatial = (_moments(path, arrays, *names) for names in MOMENTS)
        images = _images(path, arrays, side) if "arr_0" in arrays else None
    if not isinstance(network, Inception):
        pooled = spatial = None
    if pooled is None and images is None:
        raise ParameterError(
            f"{SETTING}: {path} holds no images (arr_0), and its moments are of Inception features, not of "
            f"{network.name}: name a file of Inception weights in evaluate.images.features, or a folder of images"
        )
    features = None
    if images is not None:
        starts = range(0, len(images), TOGETHER)
        parts = [images[start : start + TOGETHER] for start in starts]
        sources = [{"npz": digest, "from": start} for start in starts]
        pieces = [(source, partial(_channels_first, part)) for source, part in zip(sources, parts, strict=True)]
        features = _features_of(run, network, pieces)
    return Reference(f"{path.name}, sha256 {digest[:12]}", features, pooled, spatial)


def _opened(path: Path) -> np.lib.npyio.NpzFile:
    """Arrays of an .npz file, of numbers only."""
    try:
        arrays = np.load(path, allow_pickle=False)
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise ParameterError(f"{SETTING}: {path} cannot be read as .npz ({error}): fetch it again") from None
    if "arr_0" not in arrays and not {"mu", "sigma"} <= set(arrays.files):
        raise ParameterError(
            f"{SETTING}: {path}: expected mu and sigma, or images in arr_0, got {', '.join(arrays.files) or 'nothing'}"
        )
    return arrays


def _array(path: Path, arrays: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    try:
        return np.asarray(arrays[name])
    except (ValueError, OSError, zipfile.BadZipFile) as error:  # an array of objects would be unpickled
        raise ParameterError(f"{SETTING}: {name} of {path} cannot be read ({error}): expected numbers") from None


def _moments(path: Path, arrays: np.lib.npyio.NpzFile, mean: str, covariance: str) -> Moments | None:
    if mean not in arrays or covariance not in arrays:
        return None
    m, c = (torch.from_numpy(_array(path, arrays, name).astype(np.float64)) for name in (mean, covariance))
    if m.dim() != 1 or c.shape != (len(m), len(m)):
        raise ParameterError(
            f"{SETTING}: {path}: expected {mean} (d,) and {covariance} (d, d), got {tuple(m.shape)}, {tuple(c.shape)}"
        )
    return Moments(m, c)


def _images(path: Path, arrays: np.lib.npyio.NpzFile, side: int) -> np.ndarray:
    images = _array(path, arrays, "arr_0")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ParameterError(
            f"{SETTING}: arr_0 of {path}: expected bytes (n, height, width, 3), got {images.dtype} {images.shape}"
        )
    _check_side(f"arr_0 of {path}", images.shape[1:3], side)
    return images


def _channels_first(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
