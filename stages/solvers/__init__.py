"""Layer-wise methods, one file each: LinearProblem and Budget -> LinearSolution."""

from pathlib import Path

_SHARED = frozenset({"__init__", "contract", "registry"})


def names() -> list[str]:
    """Names of the methods there are: every file of this folder that is not shared machinery."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in _SHARED)
