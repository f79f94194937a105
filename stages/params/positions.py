"""Refuses settings that run the model on longer sequences than it has positions for (max_position_embeddings)."""

from __future__ import annotations

from stages.errors import ParameterError
from stages.params import Params


def token_lengths(params: Params) -> dict[str, int]:
    """The longest sequence, in tokens, that each setting runs the model on; settings that are off are left out."""
    settings = params.evaluate
    lengths = {
        "calibration.length": params.calibration.length,
        "evaluate.perplexity.window": settings.perplexity.window + settings.perplexity.bos,
    }
    if settings.tasks.names and settings.tasks.max_length is not None:
        lengths["evaluate.tasks.max_length"] = settings.tasks.max_length
    if settings.attention.sequences:
        lengths["evaluate.attention.length"] = settings.attention.length
    if settings.speed.repeats:
        lengths["evaluate.speed.prompt + generate"] = settings.speed.prompt + settings.speed.generate
    return lengths


def check_positions(
    params: Params, positions: int | None, sections: tuple[str, ...] = ("calibration", "evaluate")
) -> None:
    """Raise ParameterError, naming the setting, where it asks for more tokens at once than the model was made for.

    positions: of the model, learned or rotary; None where its configuration tells none. sections: which are checked.
    """
    for name, length in token_lengths(params).items():
        if positions is not None and length > positions and name.startswith(sections):
            more = " (the BOS token counts)" if name.endswith("window") and params.evaluate.perplexity.bos else ""
            raise ParameterError(
                f"{name}: expected at most {positions}, the positions that the model was made for "
                f"(max_position_embeddings of its config.json), got {length}{more}: set it to {positions} or less"
            )
