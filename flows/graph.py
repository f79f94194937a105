"""Reads the graph of dvc.yaml with DVC: the stages' order, what each needs, which are not up to date."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import networkx
from dvc.dvcfile import PROJECT_FILE
from dvc.exceptions import DvcException
from dvc.repo import Repo

from flows.errors import FlowError


@dataclass(frozen=True)
class Graph:
    """Stages in an order in which they can run.

    needs:   by stage, those whose outputs it reads.
    changed: those that are not up to date, as `dvc status` says.
    """

    order: tuple[str, ...]
    needs: Mapping[str, frozenset[str]]
    changed: frozenset[str]


def read_graph(folder: Path) -> Graph:
    """The graph of the dvc.yaml in `folder`, without those of folders inside (experiments).

    Raises FlowError where DVC cannot read it.
    """
    try:
        with Repo(str(folder)) as repo:
            stages = [stage for stage in repo.index.stages if stage.path_in_repo == PROJECT_FILE]
            places = {stage: place for place, stage in enumerate(stages)}
            graph = repo.index.graph.subgraph(stages)
            order = networkx.lexicographical_topological_sort(graph.reverse(), key=places.__getitem__)
            needs = {stage.name: frozenset(other.name for other in graph.successors(stage)) for stage in stages}
            changed = frozenset(name.rpartition(":")[2] for name in repo.status(str(folder / PROJECT_FILE)))
            return Graph(tuple(stage.name for stage in order), needs, changed)
    except DvcException as error:
        raise FlowError(f"{folder}/dvc.yaml: {_reason(error)}: put it right, or go to the project's folder") from None


def _reason(error: BaseException) -> str:
    cause = f" ({error.__cause__})" if error.__cause__ else ""
    return " ".join(f"{error}{cause}".split())
