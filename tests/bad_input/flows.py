"""Flows: overrides, stages, lists and schedules that cannot be; a server that does not answer."""

from __future__ import annotations

from tests.bad_input.case import Case, Change, bad, nothing, remove, write


def flow(name: str, command: str, *told: str, change: Change = nothing, code: int = 1, **environment: str) -> Case:
    """A flow that must end in one line."""
    return bad(name, f"flows.{command}", change, *told, code=code, environment=environment)


NIGHTLY = "serve --cron '0 2 * * *'"

CASES = [
    flow("a stage that is not there", "pipeline --stage sovle", "--stage: expected one of .*solve.*got sovle"),
    flow("an override of what is not there", "pipeline solve.sparsty=0.5", r"params\.yaml: .*sparsty"),
    flow("an override without a value", "pipeline solve.sparsity", r"params\.yaml: .*solve\.sparsity"),
    flow("a stage beside an override", "pipeline --stage solve solve.sparsity=0.6",
         r"--stage: expected none beside solve\.sparsity=0\.6, got solve", "leave out --stage"),
    flow("a flow outside a project", "pipeline", r"dvc\.yaml is not in .*run flows from the project's folder",
         change=remove("dvc.yaml")),
    flow("a dvc.yaml that is not YAML", "pipeline", r"dvc\.yaml", "put it right", change=write("dvc.yaml",
         "stages: [")),
    flow("a sweep of nothing", "sweep", r"sweep: expected at least one parameter with values, e\.g\. --sparsity"),
    flow("a list without values", "sweep --list solve.sparsity",
         r"expected parameter=value,value, got solve\.sparsity"),
    flow("a parameter swept twice", "sweep --sparsity 0.3 --list solve.sparsity=0.5", r"solve\.sparsity", "twice"),
    flow("a schedule of four fields", "serve --cron '0 2 * *'", r"--cron: expected five fields .*got '0 2 \* \*'"),
    flow("a schedule in words", "serve --cron nightly", r"--cron: expected five fields .*got 'nightly'"),
    flow("an interval of nothing", "serve --interval 0", r"--interval: expected seconds .*got 0"),
    flow("no schedule", "serve", "one of the arguments --cron --interval is required", code=2),
    flow("two schedules", f"{NIGHTLY} --interval 60", "--interval: not allowed with argument --cron", code=2),
]  # fmt: skip
"""With a server that answers."""

ALONE = [
    flow("a schedule without a server", NIGHTLY, "PREFECT_API_URL: .*got none: start one with `prefect server start`",
         PREFECT_API_URL=""),
    flow("a server that does not answer", NIGHTLY,
         r"PREFECT_API_URL: no Prefect server answers at http://127\.0\.0\.1:9",
         PREFECT_API_URL="http://127.0.0.1:9/api"),
]  # fmt: skip
"""Without."""
