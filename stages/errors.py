"""The errors a user can put right (SecateurError and its kinds), and helpers that make their messages one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST_REASON = 300
"""Characters of a library's own message that are shown."""


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """A message that names what there is: "unknown role 'mlp.gat': did you mean mlp.gate? Expected one of ..."."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    guess = f"did you mean {near[0]}? Expected" if near else "expected"
    return f"unknown {kind} {name!r}: {guess} one of: {', '.join(names) or 'none'}"


def reason_of(error: BaseException, whole: bool = False) -> str:
    """A library's error in one line: its kind and the first line of what it says, without its last full stop.

    whole: all lines, for errors whose first one only names the check that failed (validation of configurations).
    """
    lines = str(error).strip().splitlines() or [""]
    text = " ".join((" ".join(lines) if whole else lines[0]).split()).rstrip(". ")
    return f"{type(error).__name__}: {text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + '…'}"


class SecateurError(Exception):
    """Something the user can put right; the message says what was expected, what came, what to do."""


class ParameterError(SecateurError):
    """A value in params.yaml that cannot be used; the message begins with the parameter's name."""


class SourceError(SecateurError):
    """A model, text or wheel that cannot be had, or is not what its hash says."""


class UnreachableError(SourceError):
    """The network did not answer: the one failure that a second try can cure."""


class ArtifactError(SecateurError):
    """A file that is missing, corrupt, or made from other inputs than the ones at hand."""


class NotFiniteError(SecateurError):
    """NaN or infinity in weights, activations or statistics; the message names the place."""


class NotPositiveDefiniteError(SecateurError):
    """A Gram matrix that no allowed damping made positive definite."""


class ArchitectureError(SecateurError):
    """A model whose blocks or linears could not be found by their structure."""


class GatingError(SecateurError):
    """Parameter groups that cannot be gated as asked, or an optimiser that would not train them as the theory needs."""
