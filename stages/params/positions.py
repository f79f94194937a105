"""Settings that have the model run on more tokens at once than it has positions for: one line at the first stage."""

from __future__ import annotations

from stages.errors import ParameterError
from stages.params import Params


def token_lengths(params: Params) -> dict[str, int]:
    """How many tokens the model is run on at once, by the setting that says so; what is off is left out."""
    settings = params.evaluate
    found = {
        "calibration.length": params.calibration.length,
        "evaluate.perplexity.window": settings.perplexity.window + settings.perplexity.bos,
    }
    if settings.tasks.names and settings.tasks.max_length is not None:
        found["evaluate.tasks.max_length"] = settings.tasks.max_length
    if settings.attention.sequences:
        found["evaluate.attention.length"] = settings.attention.length
    if settings.speed.repeats:
        found["evaluate.speed.prompt + generate"] = settings.speed.prompt + settings.speed.generate
    return found


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
