"""Feature networks of image metrics: a transformers image classifier, or Inception with the weights of a file.

| | a classifier's folder | a file of Inception weights |
|---|---|---|
| pooled, for FID, precision, recall | what enters its last linear | pool_3, 2048 |
| spatial, for sFID | the first 7 channels of its last but one hidden state | the first 7 channels of mixed_6/conv |
| logits, for the Inception score | the classifier's | without the bias, as ADM's evaluator |
| pixels | by its preprocessor_config.json; without one, in [-1, 1] as they are | resized to 299 as TensorFlow 1 did |
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoImageProcessor, AutoModelForImageClassification
from transformers.utils import logging as transformers_logging

from stages.artifacts.manifest import sha256_of
from stages.errors import ParameterError, reason_of
from stages.models.imaging.inception import SPATIAL_CHANNELS, InceptionV3
from stages.models.loading.compute import device_of, settle_vector_math

SETTING = "evaluate.images.features"


@dataclass(frozen=True)
class Features:
    """Features of n images in float32: pooled (n, d), spatial (n, s), logits (n, classes)."""

    pooled: Tensor
    spatial: Tensor
    logits: Tensor


class FeatureNetwork(Protocol):
    """A network in evaluation mode that gives the features of images, bytes (n, 3, height, width)."""

    @property
    def network(self) -> nn.Module:
        """The module itself."""
        ...

    @property
    def name(self) -> str:
        """In words."""
        ...

    @property
    def files(self) -> Mapping[str, str]:
        """sha256 of its files by name."""
        ...

    @property
    def classes(self) -> int | None:
        """How many its logits are of; None for those of TensorFlow's Inception, whose order no model has."""
        ...

    def __call__(self, images: Tensor) -> Features:
        """Features on the CPU."""
        ...


@dataclass(frozen=True)
class Inception:
    """InceptionV3 of 2015; see `InceptionV3`."""

    network: InceptionV3
    files: Mapping[str, str]
    name: str = "InceptionV3"
    classes: int | None = None

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Features:
        """See FeatureNetwork."""
        return Features(*(part.float().cpu() for part in self.network(images.to(self.network.fc.weight.device))))


@dataclass(frozen=True)
class Classifier:
    """An image classifier of transformers. processor: of its folder, if there is one; head: its last linear."""

    network: Any
    processor: Any
    head: nn.Linear
    files: Mapping[str, str]
    name: str
    classes: int | None

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Features:
        """See FeatureNetwork; raises ParameterError for images or hidden states that have no such features."""
        if self.processor is None:
            pixels = images.float() / 127.5 - 1
        else:
            prepared = self.processor(list(images), return_tensors="pt", input_data_format="channels_first")
            pixels = prepared["pixel_values"]
        entered = list[Tensor]()
        hook = self.head.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0].flatten(1)))
        try:
            output = self.network(pixel_values=pixels.to(self.network.device), output_hidden_states=True)
        except (RuntimeError, ValueError) as error:
            sides = " x ".join(map(str, images.shape[2:]))
            raise ParameterError(
                f"{SETTING}: {self.name} cannot take images of {sides} pixels ({reason_of(error)}): give it a "
                "preprocessor_config.json that resizes them, or name another network"
            ) from error
        finally:
            hook.remove()
        return Features(entered[0].float().cpu(), _spatial(output, self.name), output.logits.float().cpu())


def _spatial(output: Any, name: str) -> Tensor:
    """The first channels of the last but one hidden state: of a map (n, c, h, w), or of tokens (n, t, c)."""
    states = output.hidden_states
    if not states or len(states) < 2 or states[-2].dim() not in (3, 4):
        raise ParameterError(f"{SETTING}: {name} gives no hidden states, which sFID is of: name another classifier")
    state = states[-2] if states[-2].dim() == 4 else states[-2].transpose(1, 2)
    return state[:, :SPATIAL_CHANNELS].flatten(1).float().cpu()


def load_feature_network(path: Path, device: str) -> FeatureNetwork:
    """The feature network at `path`, a classifier's folder or a file of Inception weights, in float32.

    device: see `device_of`. No file is unpickled but for tensors. Raises ParameterError for what is neither.
    """
    settle_vector_math()
    if path.is_dir():
        return _classifier(path, device)
    if not path.is_file():
        raise ParameterError(
            f"{SETTING}: {path} is missing: give the folder of a transformers image classifier, or a file of Inception "
            "weights (weights-inception-2015-12-05-6726825d.pth)"
        )
    network = InceptionV3().eval().requires_grad_(False)
    given = _state_of(path)
    expected = network.state_dict()
    wrong = [name for name, value in expected.items() if not _fits(name, value, given)]
    unknown = [name for name in given if name not in expected]
    if wrong or unknown:
        raise ParameterError(
            f"{SETTING}: {path} holds no weights of the Inception network that FID is of: {len(wrong)} of "
            f"{len(expected)} tensors are missing or of another shape ({', '.join(wrong[:2])}), {len(unknown)} are not "
            f"its own ({', '.join(unknown[:2])}): give weights-inception-2015-12-05-6726825d.pth"
        )
    network.load_state_dict(dict(given), strict=False)
    return Inception(network.to(device_of(device)), {path.name: sha256_of(path)})


def _fits(name: str, value: Tensor, given: Mapping[str, Tensor]) -> bool:
    return name.endswith("num_batches_tracked") or (name in given and given[name].shape == value.shape)


def _state_of(path: Path) -> Mapping[str, Tensor]:
    """Tensors by name of a .safetensors file, or of one that torch.save wrote, of which only tensors are read."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise ParameterError(
            f"{SETTING}: {path} cannot be read as tensors by name ({reason_of(error)}): give a .safetensors file, or a "
            ".pth file with nothing but tensors"
        ) from None
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ParameterError(f"{SETTING}: {path}: expected tensors by name, got {type(state).__name__}")
    return state


def _classifier(folder: Path, device: str) -> Classifier:
    transformers_logging.disable_progress_bar()
    try:
        network = AutoModelForImageClassification.from_pretrained(
            str(folder), dtype=torch.float32, local_files_only=True, use_safetensors=True
        )
        has_processor = (folder / "preprocessor_config.json").is_file()
        processor = AutoImageProcessor.from_pretrained(str(folder), local_files_only=True) if has_processor else None
    except Exception as error:  # transformers raises whatever a wrong folder leads to
        raise ParameterError(
            f"{SETTING}: {folder} cannot be loaded as an image classifier of transformers ({reason_of(error)}): give a "
            "folder with config.json and model.safetensors of one"
        ) from error
    network.eval().requires_grad_(False).to(device_of(device))
    linears = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not linears or linears[-1].out_features != network.config.num_labels:
        raise ParameterError(
            f"{SETTING}: {type(network).__name__} does not end in a linear with a row for each class: name another one"
        )
    files = {
        file.name: sha256_of(file)
        for file in sorted(folder.iterdir())
        if file.suffix == ".safetensors" or file.name in ("config.json", "preprocessor_config.json")
    }
    name = type(network).__name__ + (f" after {type(processor).__name__}" if processor else "")
    return Classifier(network, processor, linears[-1], files, name, network.config.num_labels)
