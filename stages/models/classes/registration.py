"""Registers classes of ours with transformers, and names them in a checkpoint's config.json."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM

Classes = Mapping[str, tuple[Any, Any]]
"""Configuration and model class, by the dense model's `model_type`."""


def register(classes: Classes) -> None:
    """Let AutoModelForCausalLM load checkpoints of these classes."""
    for config, model in classes.values():
        AutoConfig.register(config.model_type, config)
        AutoModelForCausalLM.register(config, model)
        config.register_for_auto_class()
        model.register_for_auto_class("AutoModelForCausalLM")


def class_values(dense: Mapping[str, Any], classes: Classes) -> dict[str, Any]:
    """The dense model's values of config.json, with its class among `classes` in place of its own.

    `auto_map` names the modeling file that lies in the checkpoint, for `trust_remote_code`.
    """
    config, model = classes[dense["model_type"]]
    code = code_files(model)[0]
    return {
        **dense,
        "model_type": config.model_type,
        "architectures": [model.__name__],
        "auto_map": {
            "AutoConfig": f"{code.stem}.{config.__name__}",
            "AutoModelForCausalLM": f"{code.stem}.{model.__name__}",
        },
    }


def code_files(model: type) -> tuple[Path, ...]:
    """The modeling files that a checkpoint of a class of ours carries: the class's own, then those it inherits from."""
    ours = (base for base in model.__mro__ if base.__module__.startswith(f"{__package__}."))
    return tuple(dict.fromkeys(Path(inspect.getfile(base)) for base in ours))


def copy_code(model: type, folder: Path) -> None:
    """Copy the modeling files of a class of ours (`code_files`) into a checkpoint's folder."""
    for path in code_files(model):
        shutil.copyfile(path, folder / path.name)
