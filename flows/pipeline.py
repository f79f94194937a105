"""The graph of dvc.yaml as a Prefect flow: one task a stage, Skipped, Restored or Ran.

    python -m flows.pipeline                              what is not up to date, in this folder
    python -m flows.pipeline --stage solve --force        one stage
    python -m flows.pipeline solve.sparsity=0.6           with other parameters, beside this folder

Overrides leave params.yaml alone: the run has a git worktree of its own that shares the DVC cache, and its
result is kept as a DVC experiment (`dvc exp show`, `dvc exp apply NAME`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dvc.dvcfile import PROJECT_FILE
from prefect import flow, get_run_logger, task
from prefect.client.orchestration import get_client
from prefect.states import Completed

from flows import repro
from flows.errors import FlowError, NetworkFailed, quiet_tracebacks
from flows.graph import read_graph
from flows.server import check_server
from flows.workspace import locked, project
from flows.worktree import overridden, run_name

PROJECT = "SECATEUR_PROJECT"
"""Variable that tells stages in a worktree where relative paths of params.yaml are seen from."""
RETRIES, DELAYS = 2, [10.0, 60.0]
"""Second and third try of a stage that could not reach the network, and the seconds before each."""


@flow(name="pipeline", validate_parameters=True)
def pipeline(overrides: list[str] | None = None, stage: str | None = None, force: bool = False) -> dict[str, Any]:
    """Bring all stages (or one) up to date, here or, with overrides, in a worktree of its own.

    Gives `stages`, the outcome and seconds of each; `metrics` and `cost` as the run left them; with overrides
    `experiment`, the name that the result is kept under.
    """
    quiet_tracebacks()
    tell = get_run_logger().info
    folder = project()
    if overrides and stage is not None:
        raise FlowError(
            f"--stage: expected none beside {' '.join(overrides)}, got {stage}: a result with other parameters is kept "
            "as an experiment, and so of all stages; leave out --stage, or edit params.yaml"
        )
    environment = {"PREFECT_API_URL": str(get_client(sync_client=True).api_url), PROJECT: str(folder)}
    with locked(folder, tell) as lock:
        if not overrides:
            return _run(folder, stage, force, environment, lock)
        with overridden(folder, overrides) as path:
            result = _run(path, None, force, environment, lock)
            result["experiment"] = run_name(overrides)
            # Of this dvc.yaml only: DVC refuses to save where an experiment of another was never run.
            repro.call(path, "exp", "save", "--force", "--name", result["experiment"], PROJECT_FILE)
            return result


def _run(folder: Path, stage: str | None, force: bool, environment: dict[str, str], lock: int) -> dict[str, Any]:
    graph = read_graph(folder)
    if stage is not None and stage not in graph.order:
        raise FlowError(f"--stage: expected one of {', '.join(graph.order)}, got {stage}")
    touched, outcomes = set[str](), dict[str, dict[str, Any]]()
    for name in graph.order if stage is None else (stage,):
        certain = not force and name not in graph.changed and not touched & graph.needs[name]
        begin = time.perf_counter()
        state = _reproduce(name)(folder, name, force, certain, environment, lock, return_state=True)
        if not state.is_completed():
            state.result()
        outcome = state.name
        if outcome != repro.SKIPPED:
            touched.add(name)
        outcomes[name] = {"outcome": outcome, "seconds": round(time.perf_counter() - begin, 1)}
    return {"stages": outcomes, **_results(folder)}


def _reproduce(name: str) -> Callable[..., Any]:
    """The task of a stage: only its own failure to reach the network is worth another try."""

    def reproduce(folder: Path, stage: str, force: bool, certain: bool, environment: dict[str, str], lock: int) -> Any:
        outcome = (
            repro.SKIPPED
            if certain
            else repro.reproduce(folder, stage, force, get_run_logger().info, environment, lock)
        )
        return Completed(name=outcome, message=f"{stage}: {outcome}")

    made: Callable[..., Any] = task(
        name=name, task_run_name=name, retries=RETRIES, retry_delay_seconds=DELAYS, persist_result=False,
        retry_condition_fn=_could_not_reach_the_network,
    )(reproduce)  # fmt: skip
    return made


def _could_not_reach_the_network(task: Any, run: Any, state: Any) -> bool:
    try:
        state.result()
    except NetworkFailed:
        return True
    except Exception:  # any other failure: Prefect tells it, a second try would not help
        return False
    return False


def _results(folder: Path) -> dict[str, Any]:
    """Metrics and costs as they are in the folder now."""
    kinds = {"metrics": folder / "metrics", "cost": folder / "metrics/cost"}
    return {kind: {path.stem: _json(path) for path in sorted(place.glob("*.json"))} for kind, place in kinds.items()}


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def outcome_table(result: dict[str, Any]) -> str:
    """A line a stage, and where the result is."""
    lines = [f"{name:<16} {stage['outcome']:<9} {stage['seconds']:6.1f} s" for name, stage in result["stages"].items()]
    if "experiment" in result:
        lines.append(f"kept as the experiment {result['experiment']}: dvc exp show, dvc exp apply")
    return "\n".join(lines)


def run_flow(start: Callable[[], Any]) -> Any:
    """Call a flow from the command line; a FlowError ends the process with one line and exit code 1."""
    try:
        check_server()
        return start()
    except FlowError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("stopped; finished blocks are kept, run again to go on", file=sys.stderr)
        sys.exit(130)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.pipeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="name=value", help="parameters other than params.yaml's")
    parser.add_argument("--stage", help="this stage only")
    parser.add_argument("--force", action="store_true", help="run even what is up to date")
    options = parser.parse_args()
    print(outcome_table(run_flow(lambda: pipeline(options.overrides, options.stage, options.force))))


if __name__ == "__main__":
    main()
