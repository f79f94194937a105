"""Refuses settings of evaluate that a model of images, or of text, cannot serve."""

from __future__ import annotations

from stages.errors import ParameterError
from stages.params import Params


def check_kind(params: Params, sequence: int | None) -> None:
    """Raise ParameterError, naming the setting, where evaluate asks for what the model is not made for.

    sequence: tokens of an image, its class and its codes, of a model of images; None: the model is of text.
    """
    settings = params.evaluate
    if sequence is None:
        if settings.images.count:
            raise ParameterError(
                f"evaluate.images.count: the model is of text and draws no images: expected 0, got "
                f"{settings.images.count}: set it to 0, or fetch a LlamaGen model"
            )
        return
    if settings.tasks.names:
        raise ParameterError(
            "evaluate.tasks.names: the model draws images and answers no tasks of text: expected none, got "
            f"{', '.join(settings.tasks.names)}: set it to []"
        )
    if settings.perplexity.bos:
        raise ParameterError(
            "evaluate.perplexity.bos: the class stands before the codes of an image: expected false, got true"
        )
    for name in ("window", "stride"):
        value = getattr(settings.perplexity, name)
        if value != sequence:
            raise ParameterError(
                f"evaluate.perplexity.{name}: expected {sequence}, the class and the codes of one image, got {value}: "
                f"set window and stride to {sequence}"
            )
